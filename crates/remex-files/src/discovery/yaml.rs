//! Reads a YAML document of limited size into a value whose scalars are all texts.

use std::iter;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// The longest text that is parsed, in bytes.
const MAX_LEN: usize = 64 << 10;

const MAX_DEPTH: usize = 16;

/// Returns the first document; `None` if the text is not YAML, too large, too deep, or has aliases.
///
/// A scalar is a string, or null if it is absent. An alias could repeat a part of the text many times.
pub(super) fn parse(text: &str) -> Option<Value> {
    if text.len() > MAX_LEN {
        return None;
    }
    let mut parser = Parser::new_from_str(text);
    let mut events = iter::from_fn(|| parser.next_event()).map(|event| event.ok().map(|(event, _)| event));
    loop {
        match events.next()?? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd => return Some(Value::Null),
            first => return node(first, &mut events, MAX_DEPTH),
        }
    }
}

fn node<'a>(
    first: Event<'a>,
    events: &mut impl Iterator<Item = Option<Event<'a>>>,
    depth: usize,
) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    match first {
        Event::Scalar(text, ScalarStyle::Plain, ..) if matches!(&*text, "" | "~" | "null") => {
            Some(Value::Null)
        }
        Event::Scalar(text, ..) => Some(Value::String(text.into_owned())),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next()?? {
                    Event::SequenceEnd => return Some(Value::Array(items)),
                    item => items.push(node(item, events, depth)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut members = Map::new();
            loop {
                let key = match events.next()?? {
                    Event::MappingEnd => return Some(Value::Object(members)),
                    key => node(key, events, depth)?,
                };
                let first = events.next()??;
                let value = node(first, events, depth)?;
                // Other keys mean nothing here.
                if let Value::String(key) = key {
                    members.insert(key, value);
                }
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_becomes_texts_lists_and_objects() {
        let text = "a: 1\nb: [x, 'y z', \"q\\n\"]\nc:\n  d: >\n    folded\n    text\n  e: ~\n";
        let value = json!({"a": "1", "b": ["x", "y z", "q\n"], "c": {"d": "folded text\n", "e": null}});
        assert_eq!(parse(text), Some(value));
        assert_eq!(parse(""), Some(Value::Null));
    }

    #[test]
    fn malformed_repeated_deep_or_large_documents_are_refused() {
        assert_eq!(parse("a: [1, 2"), None);
        assert_eq!(parse("a: &x [1]\nb: *x\n"), None);
        assert_eq!(parse(&"[".repeat(10_000)), None);
        assert_eq!(parse(&format!("{}1{}", "[".repeat(40), "]".repeat(40))), None);
        assert_eq!(parse(&"a".repeat(MAX_LEN + 1)), None);
    }
}
