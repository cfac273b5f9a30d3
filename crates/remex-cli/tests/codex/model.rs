//! The model that the client believes to talk to: an endpoint on loopback whose answers the test makes up.
//!
//! As much of the Responses API as one client needs: it posts the whole conversation, and the answer is a stream of events.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use serde_json::{Value, json};

use crate::http::{Request, respond};

/// Where the client asks what to do next.
pub(crate) struct Model {
    listener: TcpListener,
    /// The question that waits for its answer.
    asking: Option<TcpStream>,
}

impl Model {
    pub(crate) fn listen() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"), asking: None }
    }

    /// Returns the URL that the client is to be configured with.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.listener.local_addr().expect("a listener has an address"))
    }

    /// Accepts a connection, and takes the question that comes with it: the conversation so far.
    pub(crate) fn hear(&mut self) -> Option<Value> {
        let (stream, _) = self.listener.accept().expect("a listener accepts");
        let request = Request::read(&stream)?;
        if !request.line.starts_with("POST /v1/responses ") {
            respond(&stream, "404 Not Found", &[], b"");
            return None;
        }
        self.asking = Some(stream);
        Some(serde_json::from_slice(&request.body).expect("a question is JSON"))
    }

    /// Answers the question with one item: a message or a call of a tool.
    pub(crate) fn say(&mut self, item: &Value) {
        let usage = json!({
            "input_tokens": 1, "input_tokens_details": null,
            "output_tokens": 1, "output_tokens_details": null, "total_tokens": 2,
        });
        let events = [
            json!({"type": "response.created", "response": {"id": "response"}}),
            json!({"type": "response.output_item.done", "item": item}),
            json!({"type": "response.completed", "response": {"id": "response", "usage": usage}}),
        ];
        let events = events.map(|event| {
            format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("events have types"))
        });
        let asking = self.asking.take().expect("a question waits for its answer");
        respond(&asking, "200 OK", &["Content-Type: text/event-stream"], events.concat().as_bytes());
    }
}

impl AsFd for Model {
    /// Becomes readable when the client asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
