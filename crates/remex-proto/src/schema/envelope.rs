//! The definitions of whole messages, around those of params and results.

use serde_json::{Map, Value, json};

use super::names::{definition, method_name};
use crate::envelope::call::{Method, Origin, Takes};

/// Returns a reference to a definition.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// Adds a definition for each message to those of the types in it.
#[derive(Debug)]
pub(super) struct Envelope {
    definitions: Map<String, Value>,
}

impl Envelope {
    pub(super) fn new(definitions: Map<String, Value>) -> Self {
        Self { definitions }
    }

    /// Adds the request and the response of a method; returns its row in the table of methods.
    pub(super) fn method(&mut self, method: &Method, params: &Value, result: &Value) -> Value {
        let required = method.takes == Takes::Params;
        let (request, response) = self.exchange(method.name, params, result, required);
        json!({
            "origin": method.origin.word(),
            "family": method.family.word(),
            "params": params,
            "result": result,
            "request": request,
            "response": response,
        })
    }

    /// Adds the request and the response of a method of the client; returns its row in the table of those.
    pub(super) fn server_method(
        &mut self,
        method: &str,
        origin: Origin,
        params: &Value,
        result: &Value,
    ) -> Value {
        let (request, response) = self.exchange(method, params, result, true);
        json!({
            "origin": origin.word(),
            "params": params,
            "result": result,
            "request": request,
            "response": response,
        })
    }

    /// Adds a request and its response; returns references to both.
    fn exchange(
        &mut self,
        method: &str,
        params: &Value,
        result: &Value,
        takes_params: bool,
    ) -> (Value, Value) {
        let name = method_name(method);
        let (request, response) = (format!("{name}Request"), format!("{name}Response"));
        let mut required = vec!["id", "method"];
        // Absent params mean an empty object.
        if takes_params && self.requires_members(params) {
            required.push("params");
        }
        let call = json!({
            "description": format!("The request `{method}`."),
            "type": "object",
            "properties": {
                "id": reference("RpcRequestId"),
                "method": { "type": "string", "const": method },
                "params": params,
                "trace": { "anyOf": [reference("RpcTrace"), { "type": "null" }] },
            },
            "required": required,
        });
        let answer = json!({
            "description": format!("The answer to `{method}`, unless it is an error."),
            "type": "object",
            "properties": { "id": reference("RpcRequestId"), "result": result },
            "required": ["id", "result"],
        });
        let references = (reference(&request), reference(&response));
        self.add(request, call);
        self.add(response, answer);
        references
    }

    /// Adds a notification; returns its row in the table of notifications.
    pub(super) fn notification(&mut self, method: &str, origin: Origin, params: &Value) -> Value {
        let name = format!("{}Notification", method_name(method));
        let mut required = vec!["method"];
        if self.requires_members(params) {
            required.push("params");
        }
        let note = json!({
            "description": format!("The notification `{method}`."),
            "type": "object",
            "properties": { "method": { "type": "string", "const": method }, "params": params },
            "required": required,
        });
        let row = json!({
            "origin": origin.word(),
            "params": params,
            "notification": reference(&name),
        });
        self.add(name, note);
        row
    }

    /// Adds what all messages have in common, and the choices between them.
    pub(super) fn finish(
        mut self,
        methods: &Map<String, Value>,
        server_methods: &Map<String, Value>,
        client_notes: &Map<String, Value>,
        server_notes: &Map<String, Value>,
    ) -> Map<String, Value> {
        self.add("ClientRequest", choice("A request, by its method.", methods, "request"));
        self.add(
            "ServerRequest",
            choice("A request of the server, by its method.", server_methods, "request"),
        );
        self.add(
            "ClientNotification",
            choice("A notification of the client, by its method.", client_notes, "notification"),
        );
        self.add(
            "ServerNotification",
            choice("A notification of the server, by its method.", server_notes, "notification"),
        );
        let known: Vec<_> = server_notes.keys().chain(client_notes.keys()).collect();
        self.add(
            "ServerUnknownNotification",
            json!({
                "description": "A notification of a newer server. Clients must ignore notifications that are not listed.",
                "type": "object",
                "properties": { "method": { "type": "string", "not": { "enum": known } } },
                "required": ["method"],
                "not": { "required": ["id"] },
            }),
        );
        self.add(
            "RpcResultResponse",
            json!({
                "description": "The answer to a request that succeeded; its method says what `result` is.",
                "type": "object",
                "properties": { "id": reference("RpcRequestId"), "result": { "type": "object" } },
                "required": ["id", "result"],
            }),
        );
        self.add(
            "RpcErrorResponse",
            json!({
                "description": "The answer to a request that failed; with the id -1, to a message that is no request.",
                "type": "object",
                "properties": { "id": reference("RpcRequestId"), "error": reference("RpcError") },
                "required": ["id", "error"],
            }),
        );
        let any = |what: &str, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| reference(name)).collect();
            json!({ "description": what, "anyOf": names })
        };
        let responses = ["RpcResultResponse", "RpcErrorResponse"];
        self.add("RpcResponse", any("The answer to a request.", &responses));
        self.add(
            "ClientMessage",
            any(
                "A message from the client to the server.",
                &["ClientRequest", "ClientNotification", "RpcResponse"],
            ),
        );
        self.add(
            "ServerMessage",
            any(
                "A message from the server to the client.",
                &["RpcResponse", "ServerRequest", "ServerNotification", "ServerUnknownNotification"],
            ),
        );
        self.definitions
    }

    fn requires_members(&self, params: &Value) -> bool {
        let definition = definition(params).and_then(|name| self.definitions.get(name));
        let required = definition.and_then(|definition| definition.get("required"));
        required.and_then(Value::as_array).is_some_and(|required| !required.is_empty())
    }

    fn add(&mut self, name: impl Into<String>, schema: Value) {
        let name = name.into();
        assert!(!self.definitions.contains_key(&name), "two definitions are named `{name}`");
        self.definitions.insert(name, schema);
    }
}

/// Returns the choice between messages whose member `method` tells them apart.
fn choice(description: &str, rows: &Map<String, Value>, part: &str) -> Value {
    let mapping: Map<_, _> =
        rows.iter().map(|(method, row)| (method.clone(), row[part]["$ref"].clone())).collect();
    let choices: Vec<_> = rows.values().map(|row| row[part].clone()).collect();
    json!({
        "description": description,
        "type": "object",
        "required": ["method"],
        "oneOf": choices,
        "discriminator": { "propertyName": "method", "mapping": mapping },
    })
}
