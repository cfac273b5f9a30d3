//! Connections that are cut again and again while output flows.

use super::*;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Starts three processes and reads them over a connection that is cut again and again.
fn read_over_cuts(server: &Server, seed: u64, bytes: u64, output: &Value) -> Vec<Tail> {
    let gaps = json!({"capabilities": ["processGap"]});
    let mut dice = Dice(seed);
    let (reader, session) = new_session(server.address());
    reader.cut();
    let mut reader = resume(server.address(), &session, gaps.clone());
    let mut tails = tails(["a", "b", "c"]);
    for process in tails.keys() {
        start(&mut reader, process, &numbers(bytes), json!({"output": output}));
    }
    while !tails.values().all(Tail::is_closed) {
        for _ in 0..dice.below(120) {
            if tails.values().all(Tail::is_closed) {
                break;
            }
            notice(&mut tails, &reader.next());
        }
        reader.take_passed().iter().for_each(|message| notice(&mut tails, message));
        reader.cut();
        reader = resume(server.address(), &session, gaps.clone());
        for process in tails.keys().copied().collect::<Vec<_>>() {
            // What has come is known before more is asked for: this client has acknowledged it.
            reader.take_passed().iter().for_each(|message| notice(&mut tails, message));
            let tail = tails.get_mut(process).expect("every process has a tail");
            let read = json!({"processId": process, "afterSeq": tail.seq});
            tail.read_back(&reader.call("process/read", read).expect("the process is there"));
        }
    }
    tails.into_values().collect()
}

#[test]
fn disconnects_at_random_moments_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("server.toml");
    // A busy machine may take more than the usual two seconds to come back.
    fs::write(&config, "[limits]\nresume_hold = '10m'\n").unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    // Their servers wait now and then, so they take their chances at the same time.
    thread::scope(|scope| {
        for server in [Server::serve(&flags), Server::unix(&flags)].map(Arc::new) {
            for seed in 1..=5 {
                let server = Arc::clone(&server);
                scope.spawn(move || {
                    for tail in read_over_cuts(&server, seed, 8 * MIB, &json!({})) {
                        tail.assert_is_all_of(8 * MIB);
                    }
                });
            }
        }
    });
}

#[test]
fn output_evicted_between_random_disconnects_is_reported_to_the_byte() {
    Server::on_websocket_and_unix(|server| {
        for seed in 1..=5 {
            for tail in read_over_cuts(&server, seed, 8 * MIB, &json!({"overflow": "evict"})) {
                assert_eq!(tail.offset, 8 * MIB, "got and missing are all there was");
            }
        }
    });
}
