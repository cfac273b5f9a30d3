//! The trace context of a request, as the W3C recommendation "Trace Context" defines it.
//!
//! Start at [`TraceContext`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest `tracestate` that is passed on, in bytes.
const MAX_STATE: usize = 512;

/// The length of a `traceparent` of version 00.
const PARENT_LEN: usize = 55;

/// The member `trace` of a request, with whatever the client wrote in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceCarrier {
    /// The trace, the span that made the request, and whether they are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// What other tracing systems know about the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl TraceCarrier {
    /// Returns the context, or `None` if there is no `traceparent`.
    ///
    /// # Errors
    ///
    /// If the `traceparent` is not valid.
    pub fn context(&self) -> Result<Option<TraceContext>, InvalidTrace> {
        let state = self.tracestate.as_deref();
        self.traceparent.as_deref().map(|parent| TraceContext::parse(parent, state)).transpose()
    }
}

/// The trace that a request belongs to, and the span that made it.
///
/// ```
/// use remex_proto::TraceContext;
///
/// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let trace = TraceContext::parse(parent, None).unwrap();
/// assert_eq!(format!("{:032x}", trace.trace_id()), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert!(trace.is_sampled());
/// assert_eq!(trace.to_string(), parent);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Not 0.
    trace_id: u128,
    /// Not 0.
    parent_id: u64,
    flags: u8,
    state: Option<Box<str>>,
}

/// A `traceparent` that is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "`traceparent` must be `00-TRACE-PARENT-FLAGS` in lower-case hexadecimal digits, with 32, 16 and 2 of them"
)]
pub struct InvalidTrace;

impl TraceContext {
    /// Parses a `traceparent` and the `tracestate` that came with it.
    ///
    /// A `tracestate` that is longer than 512 bytes or not printable ASCII is ignored.
    ///
    /// # Errors
    ///
    /// If the `traceparent` is not valid.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Result<Self, InvalidTrace> {
        let (version, rest) = split(traceparent, 2)?;
        let (trace_id, rest) = split(rest, 32)?;
        let (parent_id, rest) = split(rest, 16)?;
        // Later versions may append more.
        let flags = match hex(version)? {
            0 if traceparent.len() == PARENT_LEN => rest,
            1..0xff => rest.split_once('-').map_or(rest, |(flags, _)| flags),
            _ => return Err(InvalidTrace),
        };
        if flags.len() != 2 {
            return Err(InvalidTrace);
        }
        let context = TraceContext {
            trace_id: hex(trace_id)?,
            parent_id: u64::try_from(hex(parent_id)?).map_err(|_| InvalidTrace)?,
            flags: u8::try_from(hex(flags)?).map_err(|_| InvalidTrace)?,
            state: tracestate.filter(|state| is_usable(state)).map(Into::into),
        };
        if context.trace_id == 0 || context.parent_id == 0 { Err(InvalidTrace) } else { Ok(context) }
    }

    /// Returns the id of the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// Returns the id of the span that made the request.
    pub fn parent_id(&self) -> u64 {
        self.parent_id
    }

    /// Returns whether that span is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Returns the `tracestate`, if there is a usable one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the member `trace` of a request in this trace.
    pub fn carrier(&self) -> TraceCarrier {
        TraceCarrier {
            traceparent: Some(self.to_string()),
            tracestate: self.state.as_deref().map(str::to_owned),
        }
    }
}

/// Writes the `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

/// Splits off a field of `len` bytes and the `-` after it.
fn split(text: &str, len: usize) -> Result<(&str, &str), InvalidTrace> {
    let (field, rest) = text.split_at_checked(len).ok_or(InvalidTrace)?;
    Ok((field, rest.strip_prefix('-').ok_or(InvalidTrace)?))
}

/// Returns the number in up to 32 lower-case digits.
fn hex(digits: &str) -> Result<u128, InvalidTrace> {
    if !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(InvalidTrace);
    }
    u128::from_str_radix(digits, 16).map_err(|_| InvalidTrace)
}

fn is_usable(state: &str) -> bool {
    (1..=MAX_STATE).contains(&state.len()) && state.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_context_is_parsed_and_written_back() {
        let trace = TraceContext::parse(PARENT, Some("vendor=1,other=2")).unwrap();
        let ids = (trace.trace_id(), trace.parent_id());
        assert_eq!(ids, (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7));
        assert_eq!((trace.is_sampled(), trace.state()), (true, Some("vendor=1,other=2")));
        assert_eq!(trace.carrier().context(), Ok(Some(trace)));
    }

    #[test]
    fn later_versions_may_append_fields() {
        for text in [PARENT.replacen("00", "01", 1), format!("{}-more", PARENT.replacen("00", "cc", 1))] {
            assert_eq!(TraceContext::parse(&text, None).unwrap().to_string(), PARENT, "{text}");
        }
    }

    #[test]
    fn an_invalid_parent_is_refused() {
        let invalid = [
            String::new(),
            "00-0-0-00".to_owned(),
            PARENT[..54].to_owned(),
            format!("{PARENT}0"),
            format!("{PARENT}-more"),
            PARENT.to_uppercase(),
            PARENT.replacen("00", "ff", 1),
            PARENT.replacen("00", "0 ", 1),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            PARENT.replace("00f067aa0ba902b7", "+0f067aa0ba902b7"),
            PARENT.replace('-', "_"),
            PARENT.replace("0e0e4736", "0e0e473é"),
        ];
        for text in invalid {
            assert_eq!(TraceContext::parse(&text, None), Err(InvalidTrace), "{text}");
        }
    }

    #[test]
    fn an_unusable_state_is_ignored() {
        for state in ["", "a=\u{7f}", "a=é", "a=1\n", &"a".repeat(64 << 10)] {
            assert_eq!(TraceContext::parse(PARENT, Some(state)).unwrap().state(), None);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(parent: String, state: Option<String>) {
            let _ = TraceContext::parse(&parent, state.as_deref());
        }

        #[test]
        fn every_context_round_trips(trace_id in 1u128.., parent_id in 1u64.., flags: u8) {
            let trace = TraceContext { trace_id, parent_id, flags, state: None };
            prop_assert_eq!(trace.carrier().context(), Ok(Some(trace)));
        }
    }
}
