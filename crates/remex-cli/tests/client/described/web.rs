//! The web server that the stories ask.

use std::io::Write as _;

use crate::support::Web;

/// Starts it.
pub(crate) fn start() -> Web {
    Web::start(|request, stream| {
        let (method, path) = (request.method(), request.target());
        let (status, body) = match path.trim_start_matches('/').split_once('/') {
            Some(("status", status)) => (status.to_owned(), format!("status {status}").into_bytes()),
            Some(("zeros", len)) => ("200".to_owned(), vec![0; len.parse().unwrap()]),
            _ => ("200".to_owned(), request.body.clone()),
        };
        let head =
            format!("HTTP/1.1 {status} -\r\nx-method: {method}\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    })
}
