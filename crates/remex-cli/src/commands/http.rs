//! `remex http`: makes an HTTP request from a host, in the manner of curl.
//!
//! The response is streamed: this program never holds more than a few parts of it.

mod destination;

use std::io::{self, Read as _};

use remex_client::{
    Client, ErrorKind,
    http::{Redirects, Request, StreamingResponse},
};

use self::destination::Destination;
use super::Outcome;
use crate::{
    args::http::Flags,
    remote::endpoint::DefaultEndpoint,
    render::{failure::Failure, print, text},
};

/// The most bytes of a body to send, which travels in one message.
const MAX_BODY_LEN: u64 = 128 << 20;

/// The exit code for an error status with `--fail`, as that of curl.
const ERROR_STATUS: u8 = 22;

/// The type of a body that has no other, as that of curl.
const FORM: &str = "application/x-www-form-urlencoded";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let (method, url) = method_and_url(flags)?;
    // Before anything is sent.
    let data = flags.data.clone();
    // In a thread of its own: standard input may never end, and signals are handled meanwhile.
    let body = tokio::task::spawn_blocking(move || body(&data)).await.map_err(|error| {
        Failure::new("reading the body ended early", "report this as a defect").because(error.to_string())
    })??;
    let destination = Destination::new(flags.output.as_deref())?;
    let endpoint = flags.on.endpoint(DefaultEndpoint::InProcess).await?;
    let client = endpoint.connect(|_| {}).await?;
    let request = request(flags, &client, method, url, body);
    let outcome = exchange(flags, request, destination).await;
    let _ = client.end().await;
    outcome.map_err(|failure| match failure.refusal() {
        // What else fails, such as writing a file, has nothing to do with the URL.
        Some(ErrorKind::HttpFailed) => failure.context(&format!("cannot request `{}`", text::plain(url))),
        _ => failure,
    })
}

fn method_and_url(flags: &Flags) -> Result<(&str, &str), Failure> {
    let (first, url) = match &flags.request[..] {
        [url] => (None, url),
        [method, url, ..] => (Some(method), url),
        [] => return Err(Failure::usage("no URL given", "add it, such as `http://127.0.0.1:8080/`")),
    };
    if let (Some(first), Some(named)) = (first, &flags.method)
        && first != named
    {
        let what = format!("both `{}` and `-X {}` are given", text::plain(first), text::plain(named));
        return Err(Failure::usage(what, "give one method"));
    }
    let otherwise = match (flags.head, flags.data.is_empty()) {
        (true, _) => "HEAD",
        (_, false) => "POST",
        _ => "GET",
    };
    let method = first.or(flags.method.as_ref()).map_or(otherwise, String::as_str);
    if !url.contains("://") {
        let url = text::plain(url);
        return Err(Failure::usage(
            format!("`{url}` is not a URL"),
            format!("write `http://{url}` or `https://{url}`"),
        ));
    }
    Ok((method, url))
}

/// Returns the body of `--data`; `None` without it.
fn body(data: &[String]) -> Result<Option<Vec<u8>>, Failure> {
    let mut body: Option<Vec<u8>> = None;
    for data in data {
        let part = match data.strip_prefix('@') {
            None => data.clone().into_bytes(),
            Some("-") => read(io::stdin().lock(), "standard input")?,
            Some(path) => {
                let shown = format!("`{}`", text::plain(path));
                let file = std::fs::File::open(path)
                    .map_err(|error| Failure::io(&format!("read {shown}"), &error).named_by_flag())?;
                read(file, &shown)?
            }
        };
        match &mut body {
            None => body = Some(part),
            Some(body) => {
                body.push(b'&');
                body.extend(part);
            }
        }
    }
    Ok(body)
}

fn read(from: impl io::Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    from.take(MAX_BODY_LEN + 1)
        .read_to_end(&mut content)
        .map_err(|error| Failure::io(&format!("read {name}"), &error).named_by_flag())?;
    if content.len() as u64 > MAX_BODY_LEN {
        let what = format!("cannot send {name}: it is longer than {}", text::amount(MAX_BODY_LEN));
        return Err(Failure::usage(
            what,
            "copy it there with `remex cp`, and send it with `remex run -- curl`",
        ));
    }
    Ok(content)
}

fn request(flags: &Flags, client: &Client, method: &str, url: &str, body: Option<Vec<u8>>) -> Request {
    let redirects = if flags.location { Redirects::Follow } else { Redirects::Stop };
    let mut request = client.http().request(method, url).redirects(redirects);
    let is_named = |name: &str| {
        let named = flags.headers.iter().map(|header| &header.name);
        named
            .chain(flags.headers_from_env.iter().map(|header| &header.name))
            .any(|named| named.eq_ignore_ascii_case(name))
    };
    if !is_named("user-agent") {
        request = request.header("user-agent", concat!("remex/", env!("CARGO_PKG_VERSION")));
    }
    if body.is_some() && !is_named("content-type") {
        request = request.header("content-type", FORM);
    }
    for header in flags.headers.iter().filter(|header| !header.value.is_empty()) {
        request = request.header(&header.name, &header.value);
    }
    for header in &flags.headers_from_env {
        request = request.header_from_env(&header.name, &header.prefix, &header.variable);
    }
    if let Some(body) = body {
        request = request.body(body);
    }
    match flags.timeout {
        Some(timeout) => request.timeout(timeout),
        None => request,
    }
}

/// Sends the request, and writes the response as it arrives.
async fn exchange(flags: &Flags, request: Request, mut destination: Destination) -> Outcome {
    let mut response = request.stream().await?;
    let is_error = flags.fail && response.status >= 400;
    if flags.include || flags.head {
        // With `-o`, the head goes into the file as well, as curl does it.
        let head = head(&response);
        if is_error { print::out(head)? } else { destination.write(head.as_bytes())? }
    }
    if is_error {
        Failure::new(
            format!("the web server answered with status {}", response.status),
            "omit `--fail` to see the body",
        )
        .print();
        return Ok(ERROR_STATUS);
    }
    while let Some(part) = response.body.chunk().await? {
        destination.write(&part)?;
    }
    destination.finish()?;
    Ok(0)
}

/// Formats the status and the headers; the server speaks HTTP/1.1 to web servers, and does not report the reason phrase.
fn head(response: &StreamingResponse) -> String {
    let mut head = format!("HTTP/1.1 {}\r\n", response.status);
    for header in &response.headers {
        head += &format!("{}: {}\r\n", header.name, header.value);
    }
    head + "\r\n"
}
