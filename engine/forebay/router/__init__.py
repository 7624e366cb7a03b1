"""The router: an OpenAI-compatible HTTP proxy in front of the engines of one ModelDeployment.

Pure modules decide (`view`, `leases`, `breaker`, `policy`, `split`, `retry`, `framing`, `heads`, `body`, `slices`):
time comes in as an argument and they touch no socket. The shell acts: `dataport`, `exchange`, `upstream`, `discovery`,
`loadpoll`, `admin`, `__main__`.
"""
