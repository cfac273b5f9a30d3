//! The log on stderr, and the export of spans in builds with the feature `otlp`.
//!
//! Start at [`start`].

use std::{
    borrow::Cow,
    io::{self, Write},
};

use remex_server::SetParent;
use tracing_subscriber::EnvFilter;

use super::reload::SetLog;
use crate::{
    args::serve::FILTER_HINT,
    render::{failure::Failure, text::is_control},
};

#[cfg(feature = "otlp")]
type Exporter = remex_otlp::Exporter;

/// Builds without the feature export nothing.
#[cfg(not(feature = "otlp"))]
enum Exporter {}

/// The running log.
pub(super) struct Log {
    /// Changes the filter.
    pub(super) set_filter: SetLog,
    pub(super) spans: Spans,
}

/// The exporter of spans, in addition to the log.
pub(super) struct Spans {
    exporter: Option<Exporter>,
}

/// Starts the log; must be called before other threads and the runtime exist.
pub(super) fn start(text: &str) -> Result<Log, Failure> {
    let filter = filter(text)?;
    #[cfg(feature = "otlp")]
    {
        let exporter = Exporter::from_env();
        if let Some(exporter) = exporter.map_err(|error| Failure::new(error.to_string(), error.hint()))? {
            return Ok(Log {
                set_filter: exporting(filter, &exporter),
                spans: Spans { exporter: Some(exporter) },
            });
        }
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| EscapedLines(io::stderr()))
        .with_ansi(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    #[cfg(not(feature = "otlp"))]
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some() {
        tracing::info!("traces are not exported: this program was built without the feature `otlp`");
    }
    // It fails only if the log is gone.
    Ok(Log { set_filter: Box::new(move |filter| _ = handle.reload(filter)), spans: Spans { exporter: None } })
}

/// Starts a log whose filter does not apply to exported spans; returns a function that changes it.
#[cfg(feature = "otlp")]
fn exporting(filter: EnvFilter, exporter: &Exporter) -> SetLog {
    use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| EscapedLines(io::stderr()))
        .with_ansi(false)
        .with_filter(filter);
    tracing_subscriber::registry().with(lines).with(exporter.layer()).init();
    Box::new(move |filter| _ = handle.reload(filter))
}

pub(super) fn filter(text: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(text).map_err(|error| {
        // Flag and variable were checked when they were parsed.
        Failure::usage(format!("cannot use `{text}` for `log` in the configuration file"), FILTER_HINT)
            .because(error.to_string())
    })
}

/// Escapes characters within lines that are not displayed as themselves: clients choose ids and programs, and must not
/// forge or reorder lines, or send control sequences to the terminal of a reader.
pub(crate) struct EscapedLines<W>(pub(crate) W);

impl<W: Write> Write for EscapedLines<W> {
    /// Takes one line, as the log writes them.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(&escaped(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn escaped(line: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(line);
    let content = text.strip_suffix('\n').unwrap_or(&text);
    if !content.contains(is_control) {
        return line.into();
    }
    let mut escaped = String::with_capacity(2 * line.len());
    for character in content.chars() {
        if is_control(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped.push_str(&text[content.len()..]);
    escaped.into_bytes().into()
}

#[cfg(feature = "otlp")]
impl Spans {
    /// Returns what connects spans with the traces of clients.
    pub(super) fn set_parent(&self) -> Option<SetParent> {
        self.exporter.as_ref().map(|_| remex_otlp::set_parent as SetParent)
    }

    /// Sends the last spans; must not be called within the runtime.
    pub(super) fn shut_down(self) {
        if let Some(exporter) = self.exporter {
            exporter.shut_down();
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Spans {
    pub(super) fn set_parent(&self) -> Option<SetParent> {
        self.exporter.as_ref().map(|exporter| match *exporter {})
    }

    pub(super) fn shut_down(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_whatever_a_client_chooses() {
        for (line, expected) in [
            ("WARN process=p\n", "WARN process=p\n"),
            ("WARN process=p\nERROR forged\n", "WARN process=p\\nERROR forged\n"),
            ("a\u{1b}[2J\r\u{9b}é", "a\\u{1b}[2J\\r\\u{9b}é"),
            ("a\u{202e}b\u{2028}c\u{200b}d\u{2066}\n", "a\\u{202e}b\\u{2028}c\\u{200b}d\\u{2066}\n"),
            ("\n", "\n"),
        ] {
            let mut out = EscapedLines(Vec::new());
            out.write_all(line.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out.0).unwrap(), expected);
        }
    }
}
