//! Variables of a command from files, and secrets that nothing shows.

use std::{fs, path::Path, process::Stdio};

use crate::{
    home::{Home, said},
    support::{InTime as _, Server},
};

/// Long enough to be found nowhere by chance.
const VALUE: &str = "correct-horse-battery-staple-4711";

#[test]
fn a_file_sets_variables_and_a_flag_takes_precedence() {
    let home = Home::new();
    fs::write(home.path("vars"), "# comment\nA=1\nB=two words\nLOCAL\n").unwrap();
    let script = "echo \"$A/$B/$LOCAL\"";
    let mut command = home.remex(&["run", "--env-file", "vars", "--env", "A=3", "--", "sh", "-c", script]);
    let said = said(&command.env("LOCAL", "here").stdin(Stdio::null()).finished());
    assert_eq!((said.code, said.out.as_str()), (Some(0), "3/two words/here\n"), "{said:?}");
    fs::write(home.path("vars"), format!("A=1\nexport B={VALUE}\n")).unwrap();
    let said = home.say(&["run", "--env-file", "vars", "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("line 2 has no valid name") && !said.err.contains(VALUE), "{said:?}");
    // The second line of a value may be a secret as well.
    for line in [VALUE.to_owned(), format!("{VALUE}/+=")] {
        fs::write(home.path("vars"), format!("A=1\n{line}\n")).unwrap();
        let said = home.say(&["run", "--env-file", "vars", "--", "true"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("line 2 ") && !said.err.contains(VALUE), "{said:?}");
    }
    let said = home.say(&["run", "--env-file", "nowhere", "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}

#[test]
fn secrets_are_read_from_a_variable_a_file_or_stdin() {
    let home = Home::new();
    let server = Server::start();
    fs::write(home.path("file"), format!("{VALUE}\n")).unwrap();
    for place in [&[][..], &["--on", server.address()]] {
        let args =
            |secret| [&["run"], place, &["--secret", secret, "--", "sh", "-c", "echo $PASS; cat"]].concat();
        let mut command = home.remex(&args("PASS"));
        let from_variable = said(&command.env("PASS", VALUE).stdin(Stdio::null()).finished());
        let from_file = home.say(&args("PASS=file"));
        let from_stdin = home.say_with(&args("PASS=-"), format!("{VALUE}\n").as_bytes());
        for said in [from_variable, from_file, from_stdin] {
            assert_eq!((said.code, said.out), (Some(0), format!("{VALUE}\n")), "{place:?}");
        }
    }
    // Someone who mistakes the option must not see the value again.
    let wrong = format!("PASS={VALUE}");
    let said = home.say(&["run", "--secret", &wrong, "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("cannot read the secret `PASS`") && !said.err.contains(VALUE), "{said:?}");
    let said = home.say(&["run", "--secret", "UNSET", "--", "true"]);
    assert!(said.code == Some(2) && said.err.contains("the variable is not set"), "{said:?}");
}

#[test]
fn secrets_do_not_appear_in_listings_audit_logs_or_state() {
    let home = Home::new();
    let mut command = home.remex(&["serve", "--audit", "audit"]);
    command.stdin(Stdio::null());
    let audited = Server::launch(command, 1);
    fs::write(home.path("file"), VALUE).unwrap();
    let script = "test -n \"$PASS\" && echo ready; exec sleep 1000";
    for place in [&["--here"][..], &["--on", audited.address()]] {
        let options = ["--detach", "--name", "work", "--secret", "PASS=file"];
        let args = [&["run"], place, &options, &["--", "sh", "-c", script]].concat();
        // The first one starts a server that logs all it can.
        let mut command = home.remex(&args);
        let started = said(&command.env("REMEX_LOG", "trace").stdin(Stdio::null()).finished());
        assert_eq!(started.code, Some(0), "{started:?}");
        let listed = home.say(&[&["ps", "--all", "--json"][..], place].concat());
        assert!(listed.out.contains("\"work\"") && !listed.out.contains(VALUE), "{listed:?}");
    }
    fs::remove_file(home.path("file")).unwrap();
    assert!(fs::read_to_string(home.path("audit")).unwrap().contains("\"event\":\"start\""));
    assert!(home.own_states().iter().any(|state| state.join("keeper.log").exists()), "the process is kept");
    let log = home.own_socket().parent().unwrap().to_owned();
    assert!(containing(&log, b"process/start").len() == 1, "the log is one of requests, too");
    assert_eq!(containing(&home.path(".."), VALUE.as_bytes()), Vec::<String>::new());
}

/// Returns the files below a directory that contain some bytes.
fn containing(directory: &Path, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(containing(&path, bytes));
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap_or_default();
            if content.windows(bytes.len()).any(|window| window == bytes) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}
