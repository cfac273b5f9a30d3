//! Checks of an HTTP request before anything is sent.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _};

use bytes::Bytes;
use remex_proto::{ErrorKind, RpcError, http as wire};
use reqwest::{
    Method, Url,
    header::{
        CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE,
    },
};

/// Environment variables that no client may use, in any case: they belong to the operator of the host.
const WITHHELD: [&str; 14] = [
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "CODEX_CONNECTORS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// The longest URL that fits into a request.
const MAX_URL_LEN: usize = 65_534;

/// The error for a longer one.
pub(super) const TOO_LONG: &str =
    "http/request url is invalid: it does not fit into a request of 65534 bytes";

/// The most headers of one request; far more would make the header map panic.
const MAX_HEADERS: usize = 10_000;

/// Headers about the connection that change nothing for the client; they are left out.
const LEFT_OUT: [HeaderName; 4] =
    [CONNECTION, TE, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];

/// A checked request.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// Headers with a value from the server's environment.
    pub(super) from_env: Vec<HeaderName>,
    pub(super) body: Option<Bytes>,
    pub(super) redirect_policy: wire::RedirectPolicy,
}

impl Outgoing {
    /// Checks a request and resolves values from the server's environment.
    pub(super) fn check(
        request: wire::HttpRequest,
        host_env: &[(OsString, OsString)],
    ) -> Result<Self, RpcError> {
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|error| invalid(format!("http/request method is invalid: {error}")))?;
        if method == Method::CONNECT {
            let why = "CONNECT opens a tunnel, which is not supported";
            return Err(invalid(format!("http/request method is invalid: {why}")));
        }
        // Before it is parsed, which takes long enough for others to notice.
        if request.url.len() > MAX_URL_LEN {
            return Err(invalid(TOO_LONG.to_owned()));
        }
        let url = Url::parse(&request.url)
            .map_err(|error| invalid(format!("http/request url is invalid: {error}")))?;
        if !is_web(&url) {
            let message = format!("http/request only supports http and https URLs, got {}", url.scheme());
            return Err(invalid(message));
        }
        if request.headers.len() > MAX_HEADERS {
            let count = request.headers.len();
            let message = format!("http/request has {count} headers; at most {MAX_HEADERS} can be sent");
            return Err(invalid(message));
        }
        let mut outgoing = Outgoing {
            method,
            url,
            headers: HeaderMap::new(),
            from_env: Vec::new(),
            body: request.body_base64.map(|body| body.0),
            redirect_policy: request.redirect_policy,
        };
        for header in &request.headers {
            outgoing.add(header, host_env)?;
        }
        // Some web servers insist on a length where content is usual.
        let has_content = [Method::POST, Method::PUT, Method::PATCH].contains(&outgoing.method);
        if has_content && outgoing.body.as_ref().is_none_or(Bytes::is_empty) {
            outgoing.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(outgoing)
    }

    fn add(&mut self, header: &wire::Header, host_env: &[(OsString, OsString)]) -> Result<(), RpcError> {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|error| invalid(format!("http/request header name is invalid: {error}")))?;
        let mut bytes = header.value.clone().into_bytes();
        if let Some(variable) = &header.value_env_var {
            bytes.extend_from_slice(look_up(&header.name, variable, host_env)?);
            self.from_env.push(name.clone());
        }
        let wrong =
            |why: String| invalid(format!("http/request header value is invalid for {}: {why}", header.name));
        let mut value =
            HeaderValue::from_maybe_shared(Bytes::from(bytes)).map_err(|error| wrong(error.to_string()))?;
        value.set_sensitive(header.value_env_var.is_some());
        // With a wrong length, the rest of the body would become the start of the next request.
        let len = self.body.as_ref().map_or(0, Bytes::len);
        if name == CONTENT_LENGTH && value.as_bytes() != len.to_string().as_bytes() {
            return Err(wrong(format!("the body has {len} bytes")).with_hint("omit this header"));
        }
        if let Some(why) = forbidden(&name, &value) {
            let message = format!("http/request header `{name}` cannot be sent: {why}");
            return Err(invalid(message).with_hint("omit this header"));
        }
        if !LEFT_OUT.contains(&name) {
            self.headers.append(name, value);
        }
        Ok(())
    }
}

/// Returns why no client may choose this header, which is about the connection and not about the request.
///
/// With them, a request would become a connection of another protocol, as the server's user.
fn forbidden(name: &HeaderName, value: &HeaderValue) -> Option<&'static str> {
    let mut words = value.as_bytes().split(|&byte| byte == b',');
    let asks_for_upgrade =
        name == CONNECTION && words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    if asks_for_upgrade || name == UPGRADE || name.as_str().starts_with("sec-websocket-") {
        return Some("a request cannot become a WebSocket or another protocol");
    }
    (name == TRANSFER_ENCODING || name == TRAILER).then_some("the server decides how the body is sent")
}

/// Returns whether a URL is an HTTP or HTTPS URL.
pub(super) fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn look_up<'a>(
    header: &str,
    variable: &str,
    host_env: &'a [(OsString, OsString)],
) -> Result<&'a [u8], RpcError> {
    if WITHHELD.iter().any(|withheld| withheld.eq_ignore_ascii_case(variable)) {
        let message =
            format!("http/request header {header} cannot use executor environment variable {variable}");
        return Err(invalid(message));
    }
    match host_env.iter().find(|(name, _)| name == variable) {
        Some((_, value)) if !value.is_empty() => Ok(value.as_bytes()),
        Some(_) => Err(invalid(format!(
            "http/request header {header} requires a non-empty executor environment variable {variable}"
        ))),
        None => Err(invalid(format!(
            "http/request header {header} requires executor environment variable {variable}"
        ))),
    }
}

pub(super) fn invalid(message: String) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use remex_proto::http::{Header, HttpRequest, RedirectPolicy};

    use super::*;

    fn check(headers: &[(&str, &str, Option<&str>)]) -> Result<Outgoing, RpcError> {
        let header = |(name, value, variable): &(&str, &str, Option<&str>)| Header {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
            value_env_var: variable.map(str::to_owned),
        };
        let request = HttpRequest {
            method: "GET".to_owned(),
            url: "http://web.example/".to_owned(),
            headers: headers.iter().map(header).collect(),
            body_base64: None,
            timeout_ms: None,
            redirect_policy: RedirectPolicy::Follow,
            request_id: "r".to_owned(),
            stream_response: false,
        };
        Outgoing::check(request, &[("WORD".into(), "grade".into())])
    }

    #[test]
    fn headers_that_change_the_protocol_are_refused_by_name() {
        for (name, value, variable) in [
            ("Upgrade", "websocket", None),
            ("upgrade", "h2c", None),
            ("Connection", "Upgrade", None),
            ("connection", "keep-alive ,\tUPGRADE", None),
            ("connection", "up", Some("WORD")),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", None),
            ("sec-websocket-version", "13", None),
            ("Transfer-Encoding", "chunked", None),
            ("trailer", "expires", None),
        ] {
            let error = check(&[("accept", "*/*", None), (name, value, variable)]).expect_err(name);
            assert_eq!(error.kind, ErrorKind::InvalidParams, "{name}");
            let start = format!("http/request header `{}` cannot be sent: ", name.to_ascii_lowercase());
            assert!(error.message.starts_with(&start), "{}", error.message);
            assert_eq!(error.hint.as_deref(), Some("omit this header"));
        }
    }

    #[test]
    fn other_headers_about_the_connection_are_left_out() {
        let outgoing = check(&[
            ("Connection", "keep-alive", None),
            ("connection", "close, x-hop", None),
            ("Keep-Alive", "timeout=5", None),
            ("Proxy-Connection", "keep-alive", None),
            ("TE", "trailers", None),
            ("x-hop", "stays", None),
        ]);
        let sent: Vec<_> = outgoing.unwrap().headers.keys().map(HeaderName::to_string).collect();
        assert_eq!(sent, ["x-hop"]);
    }
}
