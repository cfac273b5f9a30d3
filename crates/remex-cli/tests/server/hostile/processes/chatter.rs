//! Programs that flush every line.

use serde_json::json;

use crate::support::{Server, encode};

/// Prints the numbers from 1 to 20,000, each with a write of its own and every tenth on stderr.
const CHATTER: &str =
    "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); case $i in *0) echo $i >&2;; *) echo $i;; esac; done";

fn numbers(keep: impl Fn(u32) -> bool) -> String {
    (1..=20_000).filter(|number| keep(*number)).map(|number| format!("{number}\n")).collect()
}

#[test]
fn every_line_of_a_chatty_program_is_delivered_once_before_its_exit() {
    let server = Server::start();
    let client = server.client();
    client.start("pipes", &["/bin/sh", "-c", &format!("{CHATTER}; exit 7")], json!({}));
    client.start("terminal", &["/bin/sh", "-c", &format!("{CHATTER}; exit 7")], json!({"tty": true}));
    let pipes = client.collect("pipes");
    assert_eq!(pipes.exit_code(), 7);
    assert!(pipes.text() == numbers(|number| number % 10 != 0));
    assert!(pipes.stderr == numbers(|number| number % 10 == 0).as_bytes());
    let terminal = client.collect("terminal");
    assert_eq!(terminal.exit_code(), 7);
    assert!(terminal.pty == numbers(|_| true).replace('\n', "\r\n").as_bytes());
}

#[test]
fn a_chatty_program_that_goes_quiet_is_read_to_the_last_byte_and_answers() {
    let server = Server::start();
    let client = server.client();
    for tty in [false, true] {
        let id = format!("tty={tty}");
        let script = format!("{CHATTER}; printf ready; while read -r line; do printf \"got $line.\"; done");
        client.start(&id, &["/bin/sh", "-c", &script], json!({"pipeStdin": true, "tty": tty}));
        client.wait_for_output(&id, "ready");
        for word in ["one", "two", "three"] {
            let line = encode(format!("{word}\n"));
            client.call("process/write", json!({"processId": id, "chunk": line, "writeId": word})).unwrap();
            client.wait_for_output(&id, &format!("got {word}."));
        }
    }
}

#[test]
fn a_chatty_program_that_closes_its_output_closes() {
    let server = Server::start();
    let client = server.client();
    client.start("p", &["/bin/sh", "-c", &format!("({CHATTER}) & exit 0")], json!({}));
    let output = client.collect("p");
    assert!(output.text() == numbers(|number| number % 10 != 0), "a background child is heard to its end");
    assert_eq!(output.order.last().map(String::as_str), Some("process/closed"));
}
