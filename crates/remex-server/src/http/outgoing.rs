//! Checks of an HTTP request before anything is sent.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _};

use bytes::Bytes;
use remex_proto::{ErrorKind, RpcError, http as wire};
use reqwest::{
    Method, Url,
    header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue},
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

/// The most headers of one request; far more would make the header map panic.
const MAX_HEADERS: usize = 10_000;

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
        self.headers.append(name, value);
        Ok(())
    }
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
