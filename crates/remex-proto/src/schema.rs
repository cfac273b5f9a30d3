//! The JSON schema of all messages, for clients in other languages. Start at [`schema`].

mod envelope;
mod names;

use std::borrow::Cow;

use envelope::{Envelope, reference};
use names::Names;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

use crate::{
    Blob, ErrorKind, HostPath, PROTOCOL_VERSION, RequestId, TraceCarrier,
    areas::{
        fs::{ContentHash, IfMatch},
        process::SignalName,
        sandbox::{self, Sandbox},
    },
    base::{blob::Encoded, error},
    envelope::call::{self, CLIENT_NOTES, METHODS, Origin, SERVER_METHODS, SERVER_NOTES},
};

/// The identity of the schema; it does not change with the version.
pub const ID: &str = "urn:remex:protocol";

/// Returns the schema of the whole protocol: messages, methods, notifications, errors, and the types they use.
///
/// Params are described as the server decodes them, results as the server encodes them. The schema itself describes one
/// message in either direction; `methods`, `serverMethods`, `clientNotifications` and `serverNotifications` list the
/// parts of each.
pub fn schema() -> Value {
    let mut from_client = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut from_server = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let methods: Vec<(Value, Value)> = call::method_schemas(&mut from_client, &mut from_server)
        .into_iter()
        .map(|(params, result)| (params.into(), result.into()))
        .collect();
    let server_methods: Vec<(Value, Value)> = call::server_method_schemas(&mut from_server, &mut from_client)
        .into_iter()
        .map(|(params, result)| (params.into(), result.into()))
        .collect();
    let plain = |schemas: Vec<Schema>| schemas.into_iter().map(Value::from).collect::<Vec<_>>();
    let client_notes = plain(call::client_note_schemas(&mut from_client));
    let server_notes = plain(call::server_note_schemas(&mut from_server));
    // Errors are encoded by hand, so the type that decodes them provides the schema.
    from_client.subschema_for::<error::Wire>();
    from_client.subschema_for::<RequestId>();
    from_client.subschema_for::<TraceCarrier>();
    let mut definitions = from_server.take_definitions(true);
    definitions.extend(from_client.take_definitions(true));

    let mut names = Names::new();
    for (method, (params, result)) in METHODS.iter().zip(&methods) {
        names.add_params(method.name, params);
        names.add_result(method.name, result);
    }
    for ((name, _), (params, result)) in SERVER_METHODS.iter().zip(&server_methods) {
        names.add_params(name, params);
        names.add_result(name, result);
    }
    for ((name, _), params) in
        CLIENT_NOTES.iter().zip(&client_notes).chain(SERVER_NOTES.iter().zip(&server_notes))
    {
        names.add_params(name, params);
    }
    let mut envelope = Envelope::new(names.apply(definitions));
    let methods: Map<_, _> = METHODS
        .iter()
        .zip(methods)
        .map(|(method, (mut params, mut result))| {
            names.rewrite(&mut params, "");
            names.rewrite(&mut result, "");
            (method.name.to_owned(), envelope.method(method, &params, &result))
        })
        .collect();
    let server_methods: Map<_, _> = SERVER_METHODS
        .iter()
        .zip(server_methods)
        .map(|((name, origin), (mut params, mut result))| {
            names.rewrite(&mut params, "");
            names.rewrite(&mut result, "");
            ((*name).to_owned(), envelope.server_method(name, *origin, &params, &result))
        })
        .collect();
    let mut notes = |table: &[(&str, Origin)], schemas: Vec<Value>| -> Map<String, Value> {
        let row = |((name, origin), mut params): (&(&str, Origin), Value)| {
            names.rewrite(&mut params, "");
            ((*name).to_owned(), envelope.notification(name, *origin, &params))
        };
        table.iter().zip(schemas).map(row).collect()
    };
    let client_notes = notes(CLIENT_NOTES, client_notes);
    let server_notes = notes(SERVER_NOTES, server_notes);
    let definitions = envelope.finish(&methods, &server_methods, &client_notes, &server_notes);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "remex protocol",
        "description": "One message, in either direction. Unknown members are allowed everywhere unless a definition says otherwise, and clients must accept words and notifications that are not listed.",
        "version": env!("CARGO_PKG_VERSION"),
        "protocolVersion": PROTOCOL_VERSION,
        "anyOf": [reference("ClientMessage"), reference("ServerMessage")],
        "methods": methods,
        "serverMethods": server_methods,
        "clientNotifications": client_notes,
        "serverNotifications": server_notes,
        "$defs": definitions,
    })
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
        "description": "The kind of error: a stable word for programs. Clients must accept words that are not listed.",
        "anyOf": [
            { "type": "string", "enum": ErrorKind::ALL.iter().map(|kind| kind.word()).collect::<Vec<_>>() },
            { "description": "A word that is not listed.", "type": "string" },
        ],
    });
    Sandbox, "Sandbox", generator => generator.subschema_for::<Option<sandbox::Context>>();
}

fn signal_words() -> Vec<&'static str> {
    let both = |signal: &SignalName| [&signal.name()["SIG".len()..], signal.name()];
    ["interrupt"].into_iter().chain(SignalName::ALL.iter().flat_map(both)).collect()
}
