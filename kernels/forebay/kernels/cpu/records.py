"""The C library's records as ctypes structures, field by field as in common/ops.h.

The loader compares sizes with the library, so a record that drifted is an error at load and not a wrong result.
Only the builders of the routines and the tape touch these classes.
"""

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import ClassVar

MAX_GROUPS = 4
PANEL_COLUMNS = 48
QUANT_GROUP = 32
SCALE_GROUP = 64
ATTENTION_BLOCK_TOKENS = 16
ATTENTION_TILE_TOKENS = 64
SUBTILE_TOKENS = 16


class OpKind(IntEnum):
    """What a record is; indexes the library's table of routines."""

    EMBED = 0
    GATHER = 1
    NORM = 2
    CONVERT = 3
    LINEAR = 4
    ROPE_KV = 5
    ATTENTION = 6
    GATE = 7
    ROUTE = 8
    SORTED_GATHER = 9
    COMBINE = 10


STEP_RECORD = len(OpKind)


class NumberKind(IntEnum):
    """Storage of activations, weights or cache."""

    FP32 = 0
    BF16 = 1
    INT8 = 2
    INT4 = 3


class Rows(IntEnum):
    """Which count of the step says how many rows an op has."""

    TOKENS = 0
    SAMPLED = 1


class OpHeader(Structure):
    """First field of every record."""

    _fields_: ClassVar = [("kind", c_int32), ("rows", c_int32), ("multiple", c_int32), ("padding", c_int32)]


class ActivationRecord(Structure):
    """struct activation."""

    _fields_: ClassVar = [
        ("data", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("group_sums", c_void_p),
        ("width", c_int64),
        ("kind", c_int32),
        ("padding", c_int32),
    ]


class CacheRecord(Structure):
    """struct kv_cache."""

    _fields_: ClassVar = [
        ("pages", c_void_p),
        ("page_tokens", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("kind", c_int32),
        ("group", c_int32),
        ("padding", c_int32),
    ]


class EmbedRecord(Structure):
    """struct embed."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("table", c_void_p),
        ("out", c_void_p),
        ("width", c_int64),
        ("scale", c_float),
        ("kind", c_int32),
    ]


class GatherRecord(Structure):
    """struct gather."""

    _fields_: ClassVar = [("op", OpHeader), ("x", c_void_p), ("out", c_void_p), ("width", c_int64)]


class NormRecord(Structure):
    """struct norm."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("out", ActivationRecord),
        ("residual", c_void_p),
        ("eps", c_float),
        ("padding", c_int32),
    ]


class ConvertRecord(Structure):
    """struct convert."""

    _fields_: ClassVar = [("op", OpHeader), ("x", c_void_p), ("out", ActivationRecord)]


class LinearRecord(Structure):
    """struct linear."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("x", ActivationRecord),
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("mins", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("offsets", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("expert_bytes", c_int64),
        ("expert_scales_bytes", c_int64),
        ("experts", c_int32),
        ("kind", c_int32),
        ("accumulate", c_int32),
        ("padding", c_int32),
    ]


class RopeKvRecord(Structure):
    """struct rope_kv."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("qkv", c_void_p),
        ("q_weight", c_void_p),
        ("k_weight", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("cache", CacheRecord),
        ("heads", c_int32),
        ("rotary_dim", c_int32),
        ("scale", c_float),
        ("eps", c_float),
    ]


class AttentionRecord(Structure):
    """struct attention."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("qkv", c_void_p),
        ("out", c_void_p),
        ("cache", CacheRecord),
        ("heads", c_int32),
        ("window", c_int32),
        ("softcap", c_float),
        ("padding", c_int32),
    ]


class GateRecord(Structure):
    """struct gate."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("gate_up", c_void_p),
        ("out", ActivationRecord),
        ("function", c_int32),
        ("padding", c_int32),
    ]


class RoutingRecord(Structure):
    """struct routing."""

    _fields_: ClassVar = [
        ("weights", c_void_p),
        ("experts_of", c_void_p),
        ("slots", c_void_p),
        ("order", c_void_p),
        ("offsets", c_void_p),
        ("experts", c_int32),
        ("top_k", c_int32),
    ]


class RouteRecord(Structure):
    """struct route."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("logits", c_void_p),
        ("routing", RoutingRecord),
        ("normalise", c_int32),
        ("padding", c_int32),
    ]


class SortedGatherRecord(Structure):
    """struct sorted_gather."""

    _fields_: ClassVar = [("op", OpHeader), ("x", ActivationRecord), ("out", ActivationRecord), ("order", c_void_p)]


class CombineRecord(Structure):
    """struct combine."""

    _fields_: ClassVar = [
        ("op", OpHeader),
        ("x", c_void_p),
        ("out", c_void_p),
        ("routing", RoutingRecord),
        ("width", c_int64),
    ]


class StepRecord(Structure):
    """struct step."""

    _fields_: ClassVar = [
        ("tokens_count", c_int64),
        ("rows_count", c_int64),
        ("sampled_count", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("starts", c_void_p),
        ("counts", c_void_p),
        ("sampled", c_void_p),
        ("tables", c_void_p * MAX_GROUPS),
        ("table_widths", c_int64 * MAX_GROUPS),
        ("token_rows", c_void_p),
        ("blocks", c_void_p),
        ("scratch", c_void_p),
        ("scratch_bytes", c_int64),
        ("counters", c_void_p),
        ("blocks_count", c_int32),
        ("threads", c_int32),
        ("bf16_instructions", c_int32),
        ("padding", c_int32),
    ]


RECORDS: dict[int, type[Structure]] = {
    OpKind.EMBED: EmbedRecord,
    OpKind.GATHER: GatherRecord,
    OpKind.NORM: NormRecord,
    OpKind.CONVERT: ConvertRecord,
    OpKind.LINEAR: LinearRecord,
    OpKind.ROPE_KV: RopeKvRecord,
    OpKind.ATTENTION: AttentionRecord,
    OpKind.GATE: GateRecord,
    OpKind.ROUTE: RouteRecord,
    OpKind.SORTED_GATHER: SortedGatherRecord,
    OpKind.COMBINE: CombineRecord,
    STEP_RECORD: StepRecord,
}
