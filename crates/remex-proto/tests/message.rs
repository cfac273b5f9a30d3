//! The scanner agrees with a third-party parser, apart from the wire's own rules.

use std::collections::BTreeSet;

use proptest::prelude::*;
use remex_proto::{Malformed, Message, MessageLimits, RequestId};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

fn parse(text: &str) -> Result<Message<'_>, Malformed> {
    Message::parse(text.as_bytes(), MessageLimits::WIRE)
}

fn notification(params: &str) -> String {
    format!(r#"{{"method":"m","params":{params}}}"#)
}

#[test]
fn an_envelope_is_split_without_changing_its_parts() {
    let text = " {\"jsonrpc\": 7, \"id\" : \"\" ,\r\n\"\\u006dethod\":\"a\\/b\",\t\"params\" : [ 1, 2 ] } ";
    let expected = Message::Request {
        id: RequestId::Text("".into()),
        method: "a/b".into(),
        params: Some("[ 1, 2 ]"),
        trace: None,
    };
    assert_eq!(parse(text), Ok(expected));
}

#[test]
fn nesting_ends_at_127_levels() {
    let nested = |depth: usize| notification(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert!(parse(&nested(126)).is_ok());
    assert_eq!(parse(&nested(127)), Err(Malformed::TooDeep { limit: 127 }));
    assert_eq!(parse(&notification(&"[".repeat(1 << 20))), Err(Malformed::TooDeep { limit: 127 }));
}

#[test]
fn a_message_has_at_most_262144_values() {
    // The message, its method and the array count too.
    let values = |count: usize| notification(&format!("[{}0]", "0,".repeat(count - 4)));
    assert!(parse(&values(262_144)).is_ok());
    assert_eq!(parse(&values(262_145)), Err(Malformed::TooManyValues { limit: 262_144 }));
}

#[test]
fn one_huge_string_is_accepted() {
    let text = notification(&format!("\"{}\"", "é\\n".repeat(1 << 20)));
    assert!(parse(&text).is_ok());
}

#[test]
fn duplicate_keys_are_found_in_small_and_in_large_objects() {
    let object = |count: usize| {
        let members: Vec<_> = (0..count).map(|index| format!("\"k{index}\":0")).collect();
        members.join(",")
    };
    for count in [1, 15, 16, 17, 1000] {
        assert!(parse(&notification(&format!("{{{}}}", object(count)))).is_ok());
        let doubled = notification(&format!("{{\"a\":{{{},\"\\u006b0\":1}}}}", object(count)));
        assert_eq!(parse(&doubled), Err(Malformed::DuplicateKey { key: "k0".to_owned() }));
    }
    assert!(parse(&notification(r#"[{"a":{"a":1}},{"a":2}]"#)).is_ok());
}

#[test]
fn numbers_stay_within_64_bits() {
    for fits in ["18446744073709551615", "-9223372036854775808", "-0", "1e308", "0.1E-9", "1e-999", "0e9"] {
        assert!(parse(&notification(fits)).is_ok(), "{fits}");
    }
    for too_large in ["18446744073709551616", "-9223372036854775809", "1e309", "100000000000000000000"] {
        assert_eq!(
            parse(&notification(too_large)),
            Err(Malformed::NumberOutOfRange { at: 23 }),
            "{too_large}"
        );
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_malformed() {
    let bytes = b"{\"method\":\"\xff\"}";
    assert_eq!(Message::parse(bytes, MessageLimits::WIRE), Err(Malformed::NotUtf8 { at: 11 }));
}

/// A JSON value that is checked for duplicate keys independently of the scanner.
struct WithoutDuplicates;

impl<'de> Deserialize<'de> for WithoutDuplicates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Check;

        impl<'de> Visitor<'de> for Check {
            type Value = WithoutDuplicates;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut keys = BTreeSet::new();
                while let Some((key, WithoutDuplicates)) = map.next_entry::<String, _>()? {
                    if !keys.insert(key) {
                        return Err(serde::de::Error::custom("duplicate"));
                    }
                }
                Ok(WithoutDuplicates)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while let Some(WithoutDuplicates) = seq.next_element()? {}
                Ok(WithoutDuplicates)
            }

            fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(WithoutDuplicates)
            }
        }

        deserializer.deserialize_any(Check)
    }
}

fn agrees(text: &str) -> Result<(), TestCaseError> {
    let ours = parse(text);
    let theirs = serde_json::from_str::<Value>(text);
    match &ours {
        Ok(_) => {
            prop_assert!(theirs.is_ok_and(|value| value.is_object()), "accepted {text:?}");
            prop_assert!(
                serde_json::from_str::<WithoutDuplicates>(text).is_ok(),
                "missed a duplicate: {text:?}"
            );
        }
        Err(Malformed::Syntax { .. }) => prop_assert!(theirs.is_err(), "refused {text:?}: {ours:?}"),
        Err(Malformed::DuplicateKey { .. }) => {
            prop_assert!(serde_json::from_str::<WithoutDuplicates>(text).is_err(), "no duplicate: {text:?}");
        }
        Err(Malformed::NotAnObject) => prop_assert!(!theirs.is_ok_and(|value| value.is_object())),
        // Theirs turns a long integer into a float, so only the digits can tell.
        Err(Malformed::NumberOutOfRange { at }) => {
            let digits = text[*at..].trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count();
            prop_assert!(theirs.is_err() || digits >= 19, "refused {text:?}");
        }
        Err(other) => {
            let names_a_member = ["id", "method", "error", "trace"].iter().any(|word| text.contains(word));
            prop_assert!(names_a_member || *other == Malformed::Purpose, "refused {text:?}: {other:?}");
        }
    }
    Ok(())
}

fn json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?",
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        "\"([a-z]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}|\\\\ud8[0-9a-f]{2}\\\\udc[0-9a-f]{2}){0,40}\"",
        "\"[a-z]{60,140}\"",
    ];
    let key = "\"([ab]|\\\\u006[12]|é){0,2}\"";
    let space = "[ \t\r\n]{0,2}";
    scalar.prop_recursive(5, 60, 6, move |inner| {
        let element =
            (space, inner.clone(), space).prop_map(|(before, value, after)| before + &value + &after);
        let member =
            (key, space, element.clone()).prop_map(|(key, space, value)| format!("{key}{space}:{value}"));
        prop_oneof![
            prop::collection::vec(element, 0..6).prop_map(|elements| format!("[{}]", elements.join(","))),
            prop::collection::vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn valid_json_is_accepted(params in json()) {
        agrees(&notification(&params))?;
        agrees(&params)?;
    }

    #[test]
    fn invalid_json_is_refused(
        params in json(),
        at: prop::sample::Index,
        with in "[\\[\\]{}\",:\\\\u0-9eE+.a-f \\-\u{0}\u{1f}\u{7f}é]{0,2}",
        removed in 0..3_usize,
    ) {
        let mut text: Vec<char> = notification(&params).chars().collect();
        let from = at.index(text.len());
        let to = text.len().min(from + removed);
        text.splice(from..to, with.chars());
        agrees(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, params in json(), at: prop::sample::Index) {
        let _ = Message::parse(&bytes, MessageLimits::WIRE);
        let mut text = notification(&params).into_bytes();
        let at = at.index(text.len());
        text.splice(at..at, bytes);
        let _ = Message::parse(&text, MessageLimits::WIRE);
    }

    #[test]
    fn messages_round_trip(id: i64, name: String, payload: Vec<String>) {
        let params = Value::from(payload).to_string();
        let method = Value::from(name.as_str());
        for (written, read) in [
            (id.to_string(), RequestId::Integer(id)),
            (method.to_string(), RequestId::Text(name.as_str().into())),
        ] {
            let text = format!(r#"{{"params":{params},"method":{method},"id":{written}}}"#);
            let expected =
                Message::Request { id: read.clone(), method: name.as_str().into(), params: Some(params.as_str()), trace: None };
            prop_assert_eq!(parse(&text), Ok(expected));
            prop_assert_eq!(serde_json::to_string(&read).unwrap(), written);
        }
    }
}
