//! Data as the descriptions write it, and what a step has given.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Returns the bytes that a description stands for.
pub(crate) fn bytes(data: &Value) -> Vec<u8> {
    if let Some(text) = data.as_str() {
        return text.as_bytes().to_vec();
    }
    let number = |member: &str| data[member].as_u64().and_then(|number| usize::try_from(number).ok());
    if let Some(last) = number("numbers") {
        return (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    }
    if let Some(len) = number("zeros") {
        return vec![0; len];
    }
    if let Some(len) = number("pattern") {
        return (0..len).map(|index| u8::try_from(index % 251).unwrap()).collect();
    }
    if let (Some(text), Some(times)) = (data["text"].as_str(), number("times")) {
        return text.repeat(times).into_bytes();
    }
    if let Some(text) = data["base64"].as_str() {
        return BASE64_STANDARD.decode(text).unwrap();
    }
    match data["join"].as_array() {
        Some(parts) => parts.iter().flat_map(bytes).collect(),
        None => panic!("{data} is no data"),
    }
}

pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}

/// What a member of an outcome is.
#[derive(Debug)]
pub(crate) enum Got {
    Data(Vec<u8>),
    /// Data of which a description tells the beginning.
    Start(Vec<u8>),
    /// Data of which a description tells the end.
    End(Vec<u8>),
    /// The hash of data.
    Hash([u8; 32]),
    Value(Value),
}

impl<T: Into<Value>> From<T> for Got {
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

impl Got {
    fn is(&self, expected: &Value) -> bool {
        match self {
            Self::Data(data) => *data == bytes(expected),
            Self::Start(data) => data.starts_with(&bytes(expected)),
            Self::End(data) => data.ends_with(&bytes(expected)),
            Self::Hash(hash) => *hash == sha256(&bytes(expected)),
            Self::Value(value) => value == expected,
        }
    }
}

/// What a step has given.
pub(crate) type Outcome = BTreeMap<&'static str, Got>;

/// Checks that an outcome has at least the members of `gives`.
pub(crate) fn assert_gives(outcome: &Outcome, gives: &Value, step: &Value) {
    for (member, expected) in gives.as_object().into_iter().flatten() {
        let got = outcome.get(member.as_str());
        assert!(got.is_some_and(|got| got.is(expected)), "{member}: got {got:.300?} from {step:.300}");
    }
}
