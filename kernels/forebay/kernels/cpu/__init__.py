"""The C library for CPU behind a Python interface: routines on tapes, packed weights, paged KV caches.

`load()` gives the library for this CPU or the reason why there is none. A decoder is a list of ops (`embed`, `norm`,
`linear`, `rope_kv`, `attention`, `convert`, `gate`, `gather`) on preallocated buffers, run by `Tape.run(Step)` in one
call. Each routine is a folder with its C source and its torch reference, and says in its docstring whether a row's bits
depend on other rows. The residual stream and all outputs of linear layers are fp32.
"""

from forebay.kernels.cpu.attention import attention
from forebay.kernels.cpu.cache import KvCache, allocate_cache, page_bytes
from forebay.kernels.cpu.convert import convert
from forebay.kernels.cpu.embed import embed
from forebay.kernels.cpu.gate import GateFunction, gate
from forebay.kernels.cpu.gather import gather
from forebay.kernels.cpu.library import CpuLibrary, Unavailable, cpu_flags, load
from forebay.kernels.cpu.linear import (
    PackedLinear,
    activation_kind,
    linear,
    pack_int4_values,
    pack_linear,
    stack_experts,
)
from forebay.kernels.cpu.moe import Routing, allocate_routing, combine, route, sorted_gather
from forebay.kernels.cpu.norm import norm, norm_add
from forebay.kernels.cpu.op import SAMPLED, TOKENS, Activation, Op, Selection, allocate_activation
from forebay.kernels.cpu.records import NumberKind
from forebay.kernels.cpu.rope_kv import HeadNorm, Rope, rope_kv
from forebay.kernels.cpu.tape import Step, Tape
from forebay.kernels.cpu_variants import runnable_variants

__all__ = [
    "SAMPLED",
    "TOKENS",
    "Activation",
    "CpuLibrary",
    "GateFunction",
    "HeadNorm",
    "KvCache",
    "NumberKind",
    "Op",
    "PackedLinear",
    "Rope",
    "Routing",
    "Selection",
    "Step",
    "Tape",
    "Unavailable",
    "activation_kind",
    "allocate_activation",
    "allocate_cache",
    "allocate_routing",
    "attention",
    "combine",
    "convert",
    "cpu_flags",
    "embed",
    "gate",
    "gather",
    "linear",
    "load",
    "norm",
    "norm_add",
    "pack_int4_values",
    "pack_linear",
    "page_bytes",
    "rope_kv",
    "route",
    "runnable_variants",
    "sorted_gather",
    "stack_experts",
]
