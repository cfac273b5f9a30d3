//! The result of a check: verdict, duration, reason and hint.
//!
//! Start at [`Finding`].

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::render::{
    failure::Failure,
    print::{Colour, Tone},
    text::plain,
};

/// The outcome of one check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// The name of the check.
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    #[serde(rename = "tookMs", serialize_with = "in_ms")]
    pub(crate) took: Option<Duration>,
    /// The details, or why it failed.
    pub(crate) what: String,
    /// The hint.
    pub(crate) hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    Ok,
    /// It works, with limitations.
    Warning,
    Failed,
    /// It was not checked, for a reason.
    Skipped,
}

impl Finding {
    pub(crate) fn new(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self { name, verdict, took: None, what: what.into(), hint: None }
    }

    pub(crate) fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, what)
    }

    pub(crate) fn failed(name: &'static str, failure: &Failure) -> Self {
        let mut finding = Self::new(name, Verdict::Failed, failure.message());
        finding.hint = failure.hint().map(str::to_owned);
        finding
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn took(mut self, time: Duration) -> Self {
        self.took = Some(time);
        self
    }
}

/// Returns whether a check failed.
pub(crate) fn any_failed(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Failed)
}

/// Formats findings as text; `failed` is the word for failed checks.
pub(crate) fn text(findings: &[Finding], failed: &str) -> String {
    let colour = Colour::of_stdout();
    let mut text = String::new();
    for finding in findings {
        let (word, tone) = match finding.verdict {
            Verdict::Ok => ("ok", Tone::Good),
            Verdict::Warning => ("warning", Tone::Bold),
            Verdict::Failed => (failed, Tone::Bad),
            Verdict::Skipped => ("skipped", Tone::Dim),
        };
        let word = colour.paint(tone, &format!("{word:<7}"));
        let took = finding.took.map(short).unwrap_or_default();
        let line = format!("  {word}  {:<17}  {took:>7}  {}", finding.name, plain(&finding.what));
        text.push_str(line.trim_end());
        text.push('\n');
        if let Some(hint) = &finding.hint {
            text.push_str(&format!("{:39}hint: {}\n", "", plain(hint)));
        }
    }
    text
}

/// Formats a short duration in at most seven characters: `0.04 ms`, `12 ms`, `1.5 s`.
pub(crate) fn short(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    match ms {
        ..1.0 => format!("{ms:.2} ms"),
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

fn in_ms<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    // Rounded to microseconds.
    time.map(|time| (time.as_secs_f64() * 1e6).round() / 1000.0).serialize(serializer)
}
