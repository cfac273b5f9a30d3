//! A validator for the part of JSON Schema that our schema uses; it refuses keywords that it does not know.

#![allow(dead_code, reason = "each test crate uses its own part")]

use serde_json::{Map, Value};

/// Keywords that do not affect validity.
const ANNOTATIONS: &[&str] =
    &["contentEncoding", "default", "description", "discriminator", "format", "title"];

/// Keywords of the root that describe the schema, or list parts of it.
const OF_THE_ROOT: &[&str] = &[
    "$defs",
    "$id",
    "$schema",
    "clientNotifications",
    "methods",
    "protocolVersion",
    "serverMethods",
    "serverNotifications",
    "version",
];

/// Checks values against a schema.
pub(crate) struct Validator<'a> {
    root: &'a Value,
}

impl<'a> Validator<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        Self { root }
    }

    /// Checks a whole message.
    pub(crate) fn check(&self, message: &Value) -> Result<(), String> {
        self.value(self.root, message, "")
    }

    /// Checks a value against one definition.
    pub(crate) fn check_as(&self, definition: &str, value: &Value) -> Result<(), String> {
        let schema = &self.root["$defs"][definition];
        assert!(schema.is_object(), "there is no definition `{definition}`");
        self.value(schema, value, "")
    }

    fn value(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(keywords) = schema else {
            return if *schema == Value::Bool(false) {
                Err(format!("{at}: nothing is allowed"))
            } else {
                Ok(())
            };
        };
        for (keyword, rule) in keywords {
            self.keyword(keyword, rule, keywords, value, at)?;
        }
        Ok(())
    }

    fn keyword(
        &self,
        keyword: &str,
        rule: &Value,
        keywords: &Map<String, Value>,
        value: &Value,
        at: &str,
    ) -> Result<(), String> {
        let holds = |holds: bool| {
            if holds { Ok(()) } else { Err(format!("{at}: {value} violates {keyword}: {rule}")) }
        };
        let rules = || rule.as_array().expect("a list of schemas");
        match keyword {
            "$ref" => {
                let target = rule.as_str().and_then(|rule| self.root.pointer(rule.strip_prefix('#')?));
                self.value(target.expect("a reference leads to a definition"), value, at)
            }
            "type" => match rule {
                Value::Array(types) => holds(types.iter().any(|name| is_of_type(name, value))),
                name => holds(is_of_type(name, value)),
            },
            "const" => holds(rule == value),
            "enum" => holds(rules().contains(value)),
            "not" => holds(self.value(rule, value, at).is_err()),
            "anyOf" => {
                let wrong: Vec<_> =
                    rules().iter().map_while(|rule| self.value(rule, value, at).err()).collect();
                if wrong.len() < rules().len() { Ok(()) } else { Err(wrong.join("; ")) }
            }
            "oneOf" => {
                let outcomes: Vec<_> = rules().iter().map(|rule| self.value(rule, value, at)).collect();
                match outcomes.iter().filter(|outcome| outcome.is_ok()).count() {
                    1 => Ok(()),
                    0 => Err(format!("{at}: fits none of {} choices", outcomes.len())),
                    many => Err(format!("{at}: fits {many} choices")),
                }
            }
            "required" => {
                let missing =
                    rules().iter().find(|name| name.as_str().is_some_and(|name| lacks(value, name)));
                missing.map_or(Ok(()), |name| Err(format!("{at}: {name} is missing")))
            }
            "properties" => {
                for (name, rule) in rule.as_object().expect("schemas by name") {
                    if let Some(member) = value.get(name) {
                        self.value(rule, member, &format!("{at}/{name}"))?;
                    }
                }
                Ok(())
            }
            "additionalProperties" => {
                let listed = keywords.get("properties").and_then(Value::as_object);
                let is_listed = |name: &String| listed.is_some_and(|listed| listed.contains_key(name));
                for (name, member) in
                    value.as_object().into_iter().flatten().filter(|(name, _)| !is_listed(name))
                {
                    self.value(rule, member, &format!("{at}/{name}"))?;
                }
                Ok(())
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(rule, item, &format!("{at}/{index}"))?;
                }
                Ok(())
            }
            "uniqueItems" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                holds(items.iter().enumerate().all(|(index, item)| !items[..index].contains(item)))
            }
            "minimum" => holds(value.as_f64().is_none_or(|number| Some(number) >= rule.as_f64())),
            "maximum" => holds(value.as_f64().is_none_or(|number| Some(number) <= rule.as_f64())),
            "pattern" => {
                let pattern = rule.as_str().expect("a pattern is a string");
                let regex = regex_automata::meta::Regex::new(pattern).expect("a pattern is valid");
                holds(value.as_str().is_none_or(|text| regex.is_match(text)))
            }
            known if ANNOTATIONS.contains(&known) || OF_THE_ROOT.contains(&known) => Ok(()),
            unknown => panic!("{at}: this validator does not know the keyword `{unknown}`"),
        }
    }
}

fn lacks(value: &Value, name: &str) -> bool {
    value.as_object().is_some_and(|members| !members.contains_key(name))
}

fn is_of_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a type is a word") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        unknown => panic!("there is no type `{unknown}`"),
    }
}
