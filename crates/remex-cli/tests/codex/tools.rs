//! Tool servers (MCP) for the client: one on its standard streams, one over HTTP.

use std::{
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

use crate::http::{Request, respond};

/// Answers what a client asks before it calls a tool, and the call with its process id and two variables.
pub(crate) const SCRIPT: &str = r#"
while IFS= read -r line; do
    id=${line#*'"id":'}
    id=${id%%[!0-9]*}
    case $line in
        *'"method":"initialize"'*)
            result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"tools","version":"1"}}' ;;
        *'"method":"tools/list"'*)
            result='{"tools":[{"name":"whoami","description":"tells who it is","inputSchema":{"type":"object"}}]}' ;;
        *'"method":"tools/call"'*)
            result='{"content":[{"type":"text","text":"'"$$ $HOME $FLAVOUR"'"}]}' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// A tool server over HTTP, which notes how it was spoken to.
pub(crate) struct Tools {
    address: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// One request: its method, and the credentials that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) method: String,
    pub(crate) authorization: Option<String>,
}

impl Tools {
    pub(crate) fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let heard = Arc::default();
        let tools = Self { address, heard: Arc::clone(&heard) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a listener accepts");
                if let Some(request) = Request::read(&stream) {
                    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                    let method = message["method"].as_str().or(request.line.split(' ').next());
                    let method = method.unwrap_or_default().to_owned();
                    let authorization = request.header("authorization").map(str::to_owned);
                    // First, because a client with its response may look here.
                    let note = Heard { method: method.clone(), authorization };
                    heard.lock().expect("nobody panics with it").push(note);
                    answer(&stream, &method, &message);
                }
            }
        });
        tools
    }

    /// Returns what a configuration says about it: where it is, and which variable holds the credentials.
    pub(crate) fn config(&self) -> String {
        let url = format!("http://{}/tools", self.address);
        format!(
            "[mcp_servers.tools]\nurl = \"{url}\"\nbearer_token_env_var = \"TOOLS_PASS\"\ndefault_tools_approval_mode = \"approve\""
        )
    }

    /// Returns everything that was heard so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().expect("nobody panics with it").clone()
    }
}

fn answer(stream: &TcpStream, method: &str, message: &Value) {
    let reply = |result: Value| {
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        let headers = ["Content-Type: application/json", "Mcp-Session-Id: session"];
        respond(stream, "200 OK", &headers, body.as_bytes());
    };
    match method {
        "initialize" => reply(json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "tools", "version": "1"},
        })),
        "tools/list" => reply(json!({"tools": [{
            "name": "shout", "description": "repeats loudly",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        }]})),
        "tools/call" => {
            let text = message["params"]["arguments"]["text"].as_str().unwrap_or_default();
            reply(json!({"content": [{"type": "text", "text": text.to_uppercase()}]}));
        }
        "DELETE" => respond(stream, "200 OK", &[], b""),
        // There are no messages of its own to wait for.
        "GET" => respond(stream, "405 Method Not Allowed", &[], b""),
        _ => respond(stream, "202 Accepted", &[], b""),
    }
}
