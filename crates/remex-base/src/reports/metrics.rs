//! Counters for monitoring, in the text format of Prometheus.
//!
//! Hand-written: a counter is one atomic number, and values that follow from the server's state are read on request.
//! Start at [`Metrics`].

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::lock;

/// The content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets for the latency of starts, in microseconds.
const START_BUCKETS_US: [u64; 10] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 10_000_000];

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident $name:literal $help:literal;)*) => {
        /// All counters.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] $(#[$doc])* pub $field: Counter,)*
            starts: Histogram,
            /// Answers that were errors, by method and kind; held briefly.
            errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
        }

        impl Metrics {
            fn write_counters(&self, out: &mut String) {
                $(simple(out, $name, "counter", $help, self.$field.get());)*
            }
        }
    };
}

counters! {
    connections "remex_connections_total" "Connections that were admitted.";
    connections_refused "remex_connections_refused_total" "Connections that a limit refused.";
    logins_failed "remex_logins_failed_total" "Attempts to authenticate that failed.";
    requests "remex_requests_total" "Requests that were answered.";
    output_bytes "remex_output_bytes_total" "Bytes of output that processes have written.";
    evicted_bytes "remex_output_evicted_bytes_total" "Bytes of output that were evicted to make room.";
    pauses "remex_output_pauses_total" "Times that a full log paused a process.";
    forgotten_early "remex_processes_forgotten_early_total" "Closed processes that were forgotten to make room for new ones.";
    gaps "remex_output_gaps_total" "Gaps in output that clients were told of.";
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts durations in buckets.
#[derive(Debug, Default)]
struct Histogram {
    /// One per bound, and one for what is longer than all of them.
    buckets: [AtomicU64; START_BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = START_BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        header(out, name, "histogram", help);
        let mut count = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = match START_BUCKETS_US.get(index) {
                Some(bound) => seconds(*bound),
                None => "+Inf".to_owned(),
            };
            line(out, &format!("{name}_bucket{{le=\"{bound}\"}} {count}"));
        }
        line(out, &format!("{name}_sum {}", seconds(self.sum_us.load(Ordering::Relaxed))));
        line(out, &format!("{name}_count {count}"));
    }
}

impl Metrics {
    /// Counts an answer.
    pub fn on_answer(&self, method: &'static str, error: Option<&'static str>, duration: Duration) {
        self.requests.add(1);
        if let Some(kind) = error {
            let mut errors = lock(&self.errors);
            *errors.entry((method, kind)).or_default() += 1;
        } else if method == "process/start" {
            self.starts.observe(duration);
        }
    }

    /// Returns the text, followed by what `gauges` appends.
    pub fn render(&self, gauges: impl FnOnce(&mut Gauges<'_>)) -> String {
        let mut out = String::with_capacity(4096);
        self.write_counters(&mut out);
        self.starts.write(
            &mut out,
            "remex_process_start_seconds",
            "Time from the request to the answer of successful starts.",
        );
        header(
            &mut out,
            "remex_request_errors_total",
            "counter",
            "Requests that were answered with an error.",
        );
        for ((method, kind), count) in &*lock(&self.errors) {
            line(
                &mut out,
                &format!("remex_request_errors_total{{method=\"{method}\",kind=\"{kind}\"}} {count}"),
            );
        }
        gauges(&mut Gauges { out: &mut out });
        out
    }
}

/// Appends numbers that are read off the state of the server.
#[derive(Debug)]
pub struct Gauges<'a> {
    out: &'a mut String,
}

impl Gauges<'_> {
    /// Appends a number that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) {
        simple(self.out, name, "gauge", help, value);
    }

    /// Appends one value per label; the values of labels need no escapes.
    pub fn gauge_by(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        header(self.out, name, "gauge", help);
        for (word, value) in values {
            line(self.out, &format!("{name}{{{label}=\"{word}\"}} {value}"));
        }
    }

    /// Appends a number that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        simple(self.out, name, "counter", help, value);
    }
}

fn simple(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    header(out, name, kind, help);
    line(out, &format!("{name} {value}"));
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, &format!("# HELP {name} {help}"));
    line(out, &format!("# TYPE {name} {kind}"));
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("writing to a string never fails");
}

/// Writes microseconds as seconds.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_appear_in_the_text() {
        let metrics = Metrics::default();
        metrics.output_bytes.add(7);
        metrics.on_answer("process/start", None, Duration::from_micros(300));
        metrics.on_answer("process/start", None, Duration::from_secs(100));
        metrics.on_answer("fs/readFile", Some("notFound"), Duration::ZERO);
        let text = metrics.render(|gauges| gauges.gauge_by("remex_x", "Help.", "cap", &[("a", 1), ("b", 2)]));
        for expected in [
            "# TYPE remex_output_bytes_total counter\nremex_output_bytes_total 7\n",
            "remex_process_start_seconds_bucket{le=\"0.00025\"} 0\n",
            "remex_process_start_seconds_bucket{le=\"0.0005\"} 1\n",
            "remex_process_start_seconds_bucket{le=\"10\"} 1\n",
            "remex_process_start_seconds_bucket{le=\"+Inf\"} 2\n",
            "remex_process_start_seconds_sum 100.0003\n",
            "remex_process_start_seconds_count 2\n",
            "remex_request_errors_total{method=\"fs/readFile\",kind=\"notFound\"} 1\n",
            "remex_x{cap=\"a\"} 1\nremex_x{cap=\"b\"} 2\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        for line in text.lines() {
            let is_comment = line.starts_with("# HELP remex_") || line.starts_with("# TYPE remex_");
            let is_sample = line.starts_with("remex_")
                && line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(is_comment || is_sample, "{line}");
        }
    }
}
