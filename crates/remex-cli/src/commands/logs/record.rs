//! The JSON of lines of output; docs/json.md documents it.

use remex_client::process::{GapCause, Stream};
use remex_proto::Blob;
use serde::Serialize;

use super::{lines::Line, selection::Missing};
use crate::render::print;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    name: &'a str,
    stream: &'static str,
    at_ms: Option<u64>,
    text: &'a str,
    /// The exact bytes, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_base64: Option<Blob>,
    /// Whether the line ended with a line feed, which `text` does not contain.
    line_feed: bool,
    /// Whether it is not a match, but near one.
    context: bool,
}

#[derive(Serialize)]
struct GapRecord<'a> {
    name: &'a str,
    gap: GapJson,
}

#[derive(Serialize)]
struct GapJson {
    bytes: Option<u64>,
    cause: Option<GapCause>,
}

/// Formats a line, with its line feed.
pub(super) fn line(name: &str, line: &Line, context: bool) -> String {
    let stream = match line.stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Pty => "terminal",
        // A stream of a newer server.
        _ => "unknown",
    };
    let bytes = line.bytes.strip_suffix(b"\n").unwrap_or(&line.bytes);
    let text = String::from_utf8_lossy(bytes);
    let is_exact = std::str::from_utf8(bytes).is_ok();
    print::json_line(&Record {
        name,
        stream,
        at_ms: line.at_ms,
        text: &text,
        bytes_base64: (!is_exact).then(|| Blob::from(bytes.to_vec())),
        line_feed: line.bytes.ends_with(b"\n"),
        context,
    })
}

/// Formats a gap, with a line feed.
pub(super) fn gap(name: &str, Missing { bytes, cause }: Missing) -> String {
    print::json_line(&GapRecord { name, gap: GapJson { bytes, cause } })
}
