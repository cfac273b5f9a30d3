//! `logs`: what a process has said, and what it says.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::{
    background_processes::{UserSession, out},
    home::Said,
    support::{DisconnectingProxy, InTime as _, Patient},
};

#[test]
fn logs_print_the_exact_bytes_of_each_stream_separately() {
    let user = UserSession::open("night");
    user.client.shell("both", r"printf 'out\n\377 no end'; printf 'err\n' >&2");
    user.client.collect("both");
    let output = user.home.remex(&["logs", "both"]).finished();
    assert_eq!(output.stdout, b"out\n\xff no end");
    assert_eq!((output.stderr, output.status.code()), (b"err\n".to_vec(), Some(0)));
    user.client.start("tty", &["/bin/echo", "shown"], json!({"tty": true}));
    user.client.collect("tty");
    assert_eq!(out(user.say(&["logs", "tty"])), "shown\r\n");
}

#[test]
fn lines_are_filtered_by_pattern_and_age() {
    let user = UserSession::open("night");
    let script = r"for n in 1 2 3 4 5 6 7 8 9 10 11 12; do printf 'line '; sleep 0.01; echo $n; done; printf 'line 13'";
    user.client.shell("lines", script);
    user.client.collect("lines");
    assert_eq!(out(user.say(&["logs", "lines", "--grep", "^line 1.*[13]$"])), "line 11\nline 13");
    assert_eq!(out(user.say(&["logs", "lines", "--tail", "2"])), "line 12\nline 13");
    assert_eq!(out(user.say(&["logs", "lines", "-n", "1", "--grep", "1"])), "line 13");
    assert_eq!(out(user.say(&["logs", "lines", "--since", "1h", "-n", "1"])), "line 13");
    assert_eq!(out(user.say(&["logs", "lines", "--since", "0s"])), "");
    let times = out(user.say(&["logs", "lines", "--timestamps", "--utc", "-n", "2"]));
    for (line, end) in times.lines().zip(["Z line 12", "Z line 13"]) {
        assert!(line.starts_with("20") && line.ends_with(end) && line.len() == 32, "{times}");
    }
    let wrong = user.say(&["logs", "lines", "--grep", "("]);
    assert!(wrong.code == Some(2) && wrong.err.contains("unclosed group"), "{wrong:?}");
}

#[test]
fn grep_ignores_case_inverts_and_shows_the_lines_around_a_match() {
    let user = UserSession::open("night");
    let script = r"printf 'one\ntwo\nERROR 3\nfour\nfive\nsix\nerror 7\neight'";
    user.client.shell("work", script);
    user.client.collect("work");
    let logs = |args: &[&str]| out(user.say(&[&["logs", "work", "--grep", "error"], args].concat()));
    assert_eq!(logs(&[]), "error 7\n");
    assert_eq!(logs(&["-i"]), "ERROR 3\nerror 7\n");
    assert_eq!(logs(&["-iv"]), "one\ntwo\nfour\nfive\nsix\neight");
    assert_eq!(logs(&["-i", "-C", "1"]), "two\nERROR 3\nfour\n--\nsix\nerror 7\neight");
    assert_eq!(logs(&["-i", "-A1"]), "ERROR 3\nfour\n--\nerror 7\neight");
    assert_eq!(logs(&["-i", "-B", "1", "-n", "1"]), "six\nerror 7\n");
    assert_eq!(user.say(&["logs", "work", "-i"]).code, Some(2), "it needs `--grep`");
}

#[test]
fn json_logs_have_one_object_per_line() {
    let user = UserSession::open("night");
    user.client.shell("both", r"printf 'out\n\377\nend'; sleep 0.2; printf 'err\n' >&2");
    user.client.collect("both");
    let lines = |args: &[&str]| -> Vec<Value> {
        let said = out(user.say(&[&["logs", "both", "--json"], args].concat()));
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut found = lines(&[]);
    for line in &mut found {
        assert!(line["atMs"].take().as_u64().is_some_and(|ms| ms > 1_700_000_000_000), "{line}");
        assert_eq!((&line["version"], &line["name"]), (&json!(1), &json!("both")));
    }
    let line = |stream: &str, text: &str, line_feed: bool| {
        json!({"version": 1, "name": "both", "stream": stream, "atMs": null, "text": text, "lineFeed": line_feed,
            "context": false})
    };
    let mut odd = line("stdout", "\u{fffd}", true);
    odd["bytesBase64"] = json!("/w==");
    found.sort_by_key(|line| line["text"].to_string());
    let mut expected =
        vec![line("stdout", "out", true), odd, line("stderr", "err", true), line("stdout", "end", false)];
    expected.sort_by_key(|line| line["text"].to_string());
    assert_eq!(found, expected);
    let near = lines(&["--grep", "out", "-A1"]);
    assert_eq!((near.len(), &near[1]["context"]), (2, &json!(true)), "{near:?}");
}

#[test]
fn times_are_shown_in_the_local_zone_with_its_offset() {
    let user = UserSession::open("night");
    user.client.shell("said", "echo now");
    user.client.collect("said");
    let shown = |zone: &str, args: &[&str]| {
        let mut logs = user.home.remex(&[&["logs", "said", "-t"], args].concat());
        out(crate::home::said(&logs.env("TZ", zone).finished()))
    };
    let utc = shown("EAST-5:30", &["--utc"]);
    let (time, text) = utc.split_once(' ').unwrap();
    assert!(time.ends_with('Z') && time.len() == 24 && text == "now\n", "{utc}");
    let east = shown("EAST-5:30", &[]);
    let (there, _) = east.split_once(' ').unwrap();
    assert!(there.ends_with("+05:30"), "{east}");
    assert_eq!(passed(ms_of_day(time), ms_of_day(there)), (5 * 60 + 30) * 60_000, "{utc} {east}");
    // What is printed is what `--since` reads.
    assert_eq!(shown("WEST3", &["--since", there]), shown("WEST3", &[]));
}

#[test]
fn each_line_has_its_own_time_even_if_read_later() {
    let user = UserSession::open("night");
    let script = "echo begun; for n in 1 2 3; do sleep 1; echo line $n; done";
    assert_eq!(user.say(&["run", "--detach", "--name", "clock", "--", "sh", "-c", script]).code, Some(0));
    out(user.say(&["wait", "clock"]));
    let shown = out(user.say(&["logs", "clock", "--timestamps"]));
    let times: Vec<_> = shown.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(
        times.iter().map(|(_, text)| *text).collect::<Vec<_>>(),
        ["begun", "line 1", "line 2", "line 3"]
    );
    let times: Vec<_> = times.iter().map(|(time, _)| ms_of_day(time)).collect();
    for pair in times.windows(2) {
        assert!(passed(pair[0], pair[1]) >= 900, "a second lies between two lines:\n{shown}");
    }
    // It begins right behind the second line, so that a command that starts slowly sees the third one too.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64 % DAY_MS;
    let since = format!("{}ms", passed(times[1] + 100, now));
    assert_eq!(out(user.say(&["logs", "clock", "--since", &since])), "line 2\nline 3\n");
}

const DAY_MS: i64 = 24 * 3600 * 1000;

/// Reads the time of day from `2026-11-15T12:34:56.789Z`.
fn ms_of_day(time: &str) -> i64 {
    let number = |from: usize, to: usize| time[from..to].parse::<i64>().unwrap();
    number(11, 13) * 3_600_000 + number(14, 16) * 60_000 + number(17, 19) * 1000 + number(20, 23)
}

/// Returns how long after one time of day another is; midnight may lie between them.
fn passed(earlier: i64, later: i64) -> i64 {
    (later - earlier).rem_euclid(DAY_MS)
}

#[test]
fn dropped_output_is_reported_with_its_size() {
    let user = UserSession::open("night");
    let script = "yes 0123456789 | head -n 60000; echo end";
    // More than one piece fits, so the last one is always there.
    let small = json!({"output": {"retainBytes": 262_144, "overflow": "evict"}});
    user.client.start("flood", &["/bin/sh", "-c", script], small);
    user.client.event("flood", "process/closed");
    let Said { code, out, err } = user.say(&["logs", "flood"]);
    assert!(code == Some(0) && out.ends_with("0123456789\nend\n"), "{code:?} {err}");
    let gone = 60_000 * 11 + 4 - out.len();
    assert!(gone > 0);
    // People read units.
    let kib = f64::from(u32::try_from(gone).unwrap()) / 1024.0;
    assert_eq!(err, format!("remex: [{kib:.0} KiB of older output discarded]\n"));
    // The missing output was not requested.
    assert_eq!(user.say(&["logs", "flood", "--tail", "1"]).err, "");
}

#[test]
fn following_continues_until_the_process_ends() {
    let user = UserSession::open("night");
    user.waiting("talk", "echo more; echo oops >&2; printf last");
    let mut logs = user.home.remex(&["logs", "talk", "--follow", "--tail", "1"]);
    let mut logs = logs.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(Patient::new(logs.stdout.take().unwrap()));
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    user.go("talk");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let end = logs.finished();
    assert_eq!((first.as_str(), rest.as_str()), ("ready\n", "more\nlast"));
    assert_eq!((end.stderr, end.status.code()), (b"oops\n".to_vec(), Some(0)));
}

#[test]
fn a_disconnect_neither_drops_nor_duplicates_a_byte() {
    let user = UserSession::open("night");
    let script = "i=0; while [ $i -lt 30000 ]; do echo number $i; i=$((i+1)); done";
    user.ready_with(
        "count",
        &format!("echo ready; read go; {script}"),
        json!({"pipeStdin": true, "output": {"retainBytes": 4_194_304}}),
    );
    let proxy = DisconnectingProxy::start(user.server.address(), &[3_000, 100_000, 200_000]);
    let mut logs = user.home.remex(&["logs", "count", "-f", "--on", proxy.address()]);
    let logs = logs.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    user.go("count");
    let end = logs.finished();
    let expected: String =
        std::iter::once("ready\n".to_owned()).chain((0..30_000).map(|i| format!("number {i}\n"))).collect();
    assert!(end.stdout == expected.as_bytes(), "{} bytes instead of {}", end.stdout.len(), expected.len());
    assert_eq!(end.status.code(), Some(0));
    assert_eq!(proxy.disconnects_left(), 0);
    let told = "remex: connection lost; reconnecting\n";
    let err = String::from_utf8(end.stderr).unwrap();
    let others: Vec<_> = err.split_inclusive('\n').filter(|line| *line != told).collect();
    assert!(err.contains(told) && !others.is_empty(), "{err}");
    assert!(others.iter().all(|line| line.starts_with("remex: reconnected after ")), "{err}");
}

#[test]
fn output_of_several_processes_is_prefixed_with_their_names() {
    let user = UserSession::open("night");
    user.client.shell("one", "echo a; echo b >&2; printf c");
    user.client.collect("one");
    user.client.shell("three", "echo d");
    user.client.collect("three");
    let said = user.say(&["logs", "one", "three"]);
    assert_eq!(
        said,
        Said {
            code: Some(0),
            out: "one   | a\none   | c\nthree | d\n".to_owned(),
            err: "one   | b\n".to_owned(),
        }
    );
    // Followed, each is shown as it speaks.
    user.waiting("four", "echo over");
    let mut logs = user.home.remex(&["logs", "--follow", "three", "four"]);
    let mut logs = logs.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(Patient::new(logs.stdout.take().unwrap()));
    let mut lines = [String::new(), String::new(), String::new()];
    stdout.read_line(&mut lines[0]).unwrap();
    stdout.read_line(&mut lines[1]).unwrap();
    user.go("four");
    stdout.read_line(&mut lines[2]).unwrap();
    lines[..2].sort();
    assert_eq!(lines, ["four  | ready\n", "three | d\n", "four  | over\n"]);
    assert_eq!(logs.ended().code(), Some(0));
}

#[test]
fn output_is_selected_by_clock_times() {
    let user = UserSession::open("night");
    user.client.shell("said", "echo now");
    user.client.collect("said");
    let times = out(user.say(&["logs", "said", "--timestamps"]));
    let time = times.split_whitespace().next().unwrap();
    let second = format!("{}Z", &time[..19]);
    for (args, shown) in [
        (&["--since", &second][..], "now\n"),
        (&["--until", time], "now\n"),
        (&["--until", "1h"], ""),
        (&["--since", "1h", "--until", "0s"], "now\n"),
        (&["--since", "2001-01-01"], "now\n"),
        (&["--until", "2001-01-01T12:30:00+02:00"], ""),
    ] {
        assert_eq!(out(user.say(&[&["logs", "said"], args].concat())), shown, "{args:?} {times}");
    }
    // A time of day is that of the machine; three hours west of here it is earlier.
    let hour = |zone: &str| {
        let mut date = std::process::Command::new("date");
        let shown = date.env("TZ", zone).args(["-d", "-1 hour", "+%H:%M:%S"]).finished();
        String::from_utf8(shown.stdout).unwrap().trim().to_owned()
    };
    for zone in ["UTC0", "WEST3", "EAST-5"] {
        for (flag, shown) in [("--since", "now\n"), ("--until", "")] {
            let mut logs = user.home.remex(&["logs", "said", flag, &hour(zone)]);
            let said = crate::home::said(&logs.env("TZ", zone).finished());
            assert_eq!((said.out.as_str(), said.err.as_str()), (shown, ""), "{zone} {flag}");
        }
    }
    assert_eq!(user.say(&["logs", "said", "--since", "noon"]).code, Some(2));
}
