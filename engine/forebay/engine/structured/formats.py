"""Values of `format` that are enforced, as patterns. Each allows only texts that every validator accepts.

Dates are real dates of the years 1000 to 2999; 29 February is left out. Used by `lower.py`.
"""

from typing import Final

_MONTH_DAY: Final = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = f"[12][0-9]{{3}}-{_MONTH_DAY}"
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):(00|30))"
_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
_HOST: Final = rf"({_LABEL}\.){{1,3}}[a-z]{{2,10}}"
_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

FORMATS: Final = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": r"^P([0-9]{1,4}D(T[0-9]{1,2}H)?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[YMW])$",
    "email": rf"^[a-z0-9_+-]{{1,20}}(\.[a-z0-9_+-]{{1,20}})?@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": rf"^{_OCTET}(\.{_OCTET}){{3}}$",
    "ipv6": "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "uri": rf"^https?://{_HOST}(/[A-Za-z0-9._~-]{{0,40}}){{0,6}}(\?[A-Za-z0-9._~=&-]{{0,60}})?$",
}
