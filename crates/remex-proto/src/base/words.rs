//! Words that a server sends, in the JSON schema: a newer server may send others.

use schemars::Schema;
use serde_json::{Value, json};

/// Marks the list of words of an enum as open in the schema: validators accept every word.
pub(crate) fn open_words(schema: &mut Schema) {
    let is_listed = |word: &Value| word.get("const").is_some_and(|word| word != "unknown");
    let words = schema.remove("oneOf").and_then(|words| words.as_array().cloned()).unwrap_or_default();
    let mut words: Vec<_> = words.into_iter().filter(is_listed).collect();
    words.push(json!({ "description": "A word that is not listed.", "type": "string" }));
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let description = format!("{description} Clients must accept words that are not listed.");
    schema.insert("description".to_owned(), description.trim().into());
    schema.insert("anyOf".to_owned(), words.into());
}
