//! Sends a request and follows redirects.
//!
//! The server does this itself, because the HTTP client does not know which headers hold secrets of the server.

use std::{
    error::Error as _,
    io,
    time::{Duration, Instant},
};

use remex_proto::{RpcError, http::RedirectPolicy};
use reqwest::{
    Method, Request, Response, StatusCode, Url,
    header::{
        AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE,
        COOKIE, HOST, HeaderName, HeaderValue, LOCATION, PROXY_AUTHORIZATION, REFERER, TRANSFER_ENCODING,
    },
};

use super::outgoing::{Outgoing, TOO_LONG, invalid, is_web};
use crate::shared::{
    host::Host,
    web::{causes, failed},
};

/// One cause of an error.
type Cause = dyn std::error::Error + 'static;

/// How many redirects are followed; the next one fails.
const MAX_REDIRECTS: usize = 10;

/// Headers that are meant for one origin only.
const ORIGIN_HEADERS: [HeaderName; 4] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, HOST];

/// Headers that describe a body.
const BODY_HEADERS: [HeaderName; 6] =
    [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, TRANSFER_ENCODING];

/// If the web server had closed an idle connection, that shows within this time; a later failure happened while
/// it worked on the request.
const STALE: Duration = Duration::from_secs(5);

/// Sends a request and returns the head of the final response, whatever its status.
pub(super) async fn send(host: &Host, outgoing: Outgoing) -> Result<Response, RpcError> {
    let clients = host.web().clients(host.own_threads(), &outgoing.url).await?;
    let Outgoing { method, url, headers, from_env, body, redirect_policy } = outgoing;
    // The builder converts a user name and password in the URL to a header.
    let mut request = clients.pooled.request(method, url).headers(headers);
    if let Some(body) = body {
        request = request.body(body);
    }
    let mut request = request.build().map_err(|error| failed(&causes(error)))?;
    let mut followed = 0;
    loop {
        // Web servers often close the connection after a redirect, so a request that cannot be repeated gets a
        // new one.
        let is_repeatable = request.method().is_idempotent();
        let client = if followed == 0 || is_repeatable { &clients.pooled } else { &clients.fresh };
        let began = Instant::now();
        let mut answered = client.execute(copy(&request)?).await;
        if is_repeatable && answered.as_ref().is_err_and(is_unanswered) && began.elapsed() < STALE {
            answered = clients.fresh.execute(copy(&request)?).await;
        }
        let response = answered.map_err(|error| match followed {
            // Covers everything that can be wrong with a request before it is sent.
            0 if error.is_builder() => invalid(TOO_LONG.to_owned()),
            _ => explain(request.method(), error),
        })?;
        let Some(target) = target(redirect_policy, &response)? else { return Ok(response) };
        if followed == MAX_REDIRECTS {
            return Err(failed("too many redirects"));
        }
        followed += 1;
        // The target may need another proxy, which may be unusable.
        host.web().clients(host.own_threads(), &target).await?;
        redirect(&mut request, response.status(), target, &from_env);
    }
}

/// Returns a copy of the request; the body is shared.
fn copy(request: &Request) -> Result<Request, RpcError> {
    request.try_clone().ok_or_else(|| failed("the body cannot be sent"))
}

/// Returns whether the connection ended before a response arrived, so that it is unknown whether the request
/// was carried out.
fn is_unanswered(error: &reqwest::Error) -> bool {
    if error.is_connect() {
        return false;
    }
    has_cause(error, |cause| {
        let is_incomplete = cause.downcast_ref().is_some_and(hyper::Error::is_incomplete_message);
        is_incomplete || cause.downcast_ref().map(io::Error::kind).is_some_and(is_end)
    })
}

fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn explain(method: &Method, error: reqwest::Error) -> RpcError {
    let hint = if has_cause(&error, is_untrusted) {
        Some(UNTRUSTED)
    } else if has_cause(&error, is_invalid_response) {
        Some(INVALID_RESPONSE)
    } else if is_unanswered(&error) && !method.is_safe() {
        Some(OUTCOME_UNKNOWN)
    } else {
        None
    };
    let mut failed = failed(&causes(error));
    failed.hint = hint.map(str::to_owned);
    failed
}

/// Returns whether the certificate of the web server was rejected.
fn is_untrusted(cause: &Cause) -> bool {
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        // TLS errors are wrapped in I/O errors, whose `source` skips the error that they wrap.
        return error.get_ref().is_some_and(|inner| is_untrusted(inner));
    }
    matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
}

/// Returns whether the head of a response is not valid, or has too many fields.
fn is_invalid_response(cause: &Cause) -> bool {
    cause.downcast_ref().is_some_and(hyper::Error::is_parse)
}

/// Returns whether a predicate holds for one of the causes of an error.
fn has_cause(error: &reqwest::Error, is_wanted: fn(&Cause) -> bool) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if is_wanted(error) {
            return true;
        }
        cause = error.source();
    }
    false
}

const INVALID_RESPONSE: &str =
    "check that the URL leads to a web server; a response may have up to 100 header fields";

const OUTCOME_UNKNOWN: &str = "the web server closed the connection before it answered, so the request may have been carried out; \
     check before you send it again";

const UNTRUSTED: &str = "the server trusts the root certificates of its host; add the issuer to them \
     (often the package `ca-certificates`), or start the server with `SSL_CERT_FILE`";

/// Returns the target of a redirect; `None` if the response is final.
fn target(policy: RedirectPolicy, response: &Response) -> Result<Option<Url>, RpcError> {
    let is_redirect = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    if policy == RedirectPolicy::Stop || !is_redirect {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|value| str::from_utf8(value.as_bytes()).ok());
    let Some(mut target) = location.and_then(|location| response.url().join(location).ok()) else {
        return Ok(None);
    };
    if !is_web(&target) {
        return Err(failed(&format!("redirect target uses unsupported URL scheme: {}", target.scheme())));
    }
    // A redirect must not choose our credentials. Both calls fail only on URLs without a host.
    let _ = target.set_username("");
    let _ = target.set_password(None);
    Ok(Some(target))
}

/// Turns a request into the one that follows the redirect.
fn redirect(request: &mut Request, status: StatusCode, target: Url, from_env: &[HeaderName]) {
    let loses_body = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => request.method() == Method::POST,
        status => status == StatusCode::SEE_OTHER,
    };
    if loses_body {
        if request.method() != Method::HEAD {
            *request.method_mut() = Method::GET;
        }
        *request.body_mut() = None;
        for name in &BODY_HEADERS {
            request.headers_mut().remove(name);
        }
    }
    if request.url().origin() != target.origin() {
        for name in ORIGIN_HEADERS.iter().chain(from_env) {
            request.headers_mut().remove(name);
        }
    }
    request.headers_mut().remove(REFERER);
    if let Some(referer) = referer(request.url(), &target) {
        request.headers_mut().insert(REFERER, referer);
    }
    *request.url_mut() = target;
}

/// Returns the `Referer` for the next request: only the origin for another site, and nothing when going from an
/// encrypted connection to an unencrypted one.
fn referer(from: &Url, to: &Url) -> Option<HeaderValue> {
    if from.scheme() == "https" && to.scheme() == "http" {
        return None;
    }
    let mut referer = from.clone();
    referer.set_username("").ok()?;
    referer.set_password(None).ok()?;
    referer.set_fragment(None);
    if from.origin() != to.origin() {
        referer.set_path("/");
        referer.set_query(None);
    }
    HeaderValue::from_str(referer.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn referer_of(from: &str, to: &str) -> Option<String> {
        let referer = referer(&from.parse().unwrap(), &to.parse().unwrap());
        referer.map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_referer_leaks_no_secrets() {
        let from = "https://user:word@a.example/path?token=1#part";
        assert_eq!(referer_of(from, "https://a.example/x").unwrap(), "https://a.example/path?token=1");
        assert_eq!(referer_of(from, "https://b.example/x").unwrap(), "https://a.example/");
        assert_eq!(referer_of(from, "https://a.example:8443/").unwrap(), "https://a.example/");
        assert_eq!(referer_of(from, "http://a.example/x"), None);
        assert_eq!(referer_of("http://a.example/x", "https://b.example/").unwrap(), "http://a.example/");
    }
}
