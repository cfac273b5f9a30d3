//! The JSON schema of all methods and notifications, for clients in other languages.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

use crate::{
    Blob, ErrorKind, HostPath,
    blob::Encoded,
    call::{self, CLIENT_NOTES, METHODS, Origin, SERVER_NOTES},
    error,
    fs::{ContentHash, IfMatch},
    process::SignalName,
    sandbox::{self, Sandbox},
};

/// Returns the schema of the whole protocol: methods, notifications, the error object, and the types they use.
///
/// Params are described as the server decodes them, results as the server encodes them.
pub fn schema() -> Value {
    let mut from_client = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut from_server = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let methods: Map<_, _> = call::method_schemas(&mut from_client, &mut from_server)
        .into_iter()
        .zip(METHODS)
        .map(|((params, result), method)| {
            let row = json!({
                "origin": method.origin.word(),
                "family": method.family.word(),
                "params": params,
                "result": result,
            });
            (method.name.to_owned(), row)
        })
        .collect();
    let client_notes = notes(CLIENT_NOTES, call::client_note_schemas(&mut from_client));
    let server_notes = notes(SERVER_NOTES, call::server_note_schemas(&mut from_server));
    // Errors are encoded by hand, so the type that decodes them provides the schema.
    let error = from_client.subschema_for::<error::Wire>();
    let mut definitions = from_server.take_definitions(true);
    definitions.extend(from_client.take_definitions(true));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "remex protocol",
        "methods": methods,
        "clientNotifications": client_notes,
        "serverNotifications": server_notes,
        "error": error,
        "$defs": definitions,
    })
}

fn notes(table: &[(&str, Origin)], schemas: Vec<Schema>) -> Map<String, Value> {
    let row = |((name, origin), params): (&(&str, Origin), Schema)| {
        ((*name).to_owned(), json!({ "origin": origin.word(), "params": params }))
    };
    table.iter().zip(schemas).map(row).collect()
}

macro_rules! described {
    ($($type:ty, $name:literal, $generator:ident => $schema:expr;)*) => {
        $(impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        })*
    };
}

described! {
    Blob, "Blob", _generator => json_schema!({
        "description": "Bytes as standard base64 with padding.",
        "type": "string",
        "contentEncoding": "base64",
    });
    Encoded, "Encoded", _generator => json_schema!({
        "description": "Standard base64 with padding; invalid base64 is reported by the method, not as invalid params.",
        "type": "string",
    });
    ContentHash, "ContentHash", _generator => json_schema!({
        "description": "`sha256:` and 64 hexadecimal digits.",
        "type": "string",
        "pattern": "^sha256:[0-9a-fA-F]{64}$",
    });
    IfMatch, "IfMatch", _generator => json_schema!({
        "description": "The content that the writer expects: a content hash, or `absent` if the file must not exist.",
        "type": "string",
        "pattern": "^(absent|sha256:[0-9a-fA-F]{64})$",
    });
    HostPath, "HostPath", _generator => json_schema!({
        "description": "A `file:` URI, or an absolute path, which is used verbatim; always a URI in results.",
        "type": "string",
        "pattern": "^(/|[Ff][Ii][Ll][Ee]:/)",
    });
    SignalName, "SignalName", _generator => json_schema!({
        "description": "`interrupt`, or a POSIX signal name, with or without `SIG`.",
        "type": "string",
        "enum": signal_words(),
    });
    ErrorKind, "ErrorKind", _generator => json_schema!({
        "description": "The kind of error: a stable word for programs.",
        "type": "string",
        "enum": ErrorKind::ALL.iter().map(|kind| kind.word()).collect::<Vec<_>>(),
    });
    Sandbox, "Sandbox", generator => generator.subschema_for::<Option<sandbox::Context>>();
}

fn signal_words() -> Vec<&'static str> {
    let both = |signal: &SignalName| [&signal.name()["SIG".len()..], signal.name()];
    ["interrupt"].into_iter().chain(SignalName::ALL.iter().flat_map(both)).collect()
}
