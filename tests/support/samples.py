"""The rules for every sample, which fakes of the store check before they accept one."""

from agent.message import (
    INT64_MIN,
    QUALITY_MAX,
    VALUE_BYTES_MAX,
    Json,
    MessageError,
    Sample,
    value_bytes,
)


def check_sample(sample: Sample) -> None:
    """Raise MessageError naming the column unless the sample may be sealed."""
    tag, source_time_ns, value, quality = sample
    if type(tag) is not int or tag < 1:
        raise MessageError("tag", f"{tag!r} is not a tag number")
    if type(source_time_ns) is not int or not INT64_MIN <= source_time_ns < 2**63:
        raise MessageError("source_time_ns", f"{source_time_ns!r} is not a time in nanoseconds since 1970")
    if type(quality) is not int or not 0 <= quality <= QUALITY_MAX:
        raise MessageError("quality", f"{quality!r} is not an OPC UA StatusCode")
    check_value(value)


def check_value(value: object) -> None:
    """Raise MessageError unless `value` is one of the types of `Value`, within its limits."""
    if value is None or type(value) in (bool, float):
        return
    if type(value) is int:
        if not INT64_MIN <= value <= 2**64 - 1:
            raise MessageError("value", f"{value} fits neither int64 nor uint64")
    elif type(value) is str or type(value) is bytes or type(value) is Json:
        if (length := value_bytes(value)) > VALUE_BYTES_MAX:
            raise MessageError("value", f"has {length} bytes, the limit is {VALUE_BYTES_MAX}")
    else:
        raise MessageError("value", f"{type(value).__name__} is not a type a tag can hold")
