//! The disk of the state directory hangs: whatever needs no disk continues.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll},
};
use crate::support::{Client, HungFs, Interrupts, Watched, start_params, with};

/// Longer than anything takes that does not wait for the disk, on a busy machine, too.
const SOON: Duration = Duration::from_secs(60);

/// From now on, lookups below these directories hang.
fn freeze(host: &DurableHost, disk: &HungFs) {
    for name in ["sessions", "processes", "spares"] {
        let path = host.state().join(name);
        fs::rename(&path, host.state().join(format!("{name}.real"))).unwrap();
        symlink(disk.path(name), path).unwrap();
    }
}

#[test]
fn a_hanging_disk_blocks_neither_kills_nor_connections_nor_nondurable_processes() {
    let host = DurableHost::start();
    // The keeper is interrupted whenever a child of it ends.
    let Some(disk) = HungFs::mount(Interrupts::Ignored) else { return };
    let (client, _) = connect(&host);
    let started = |client: &Client, id: &str, durable: bool| {
        client.start(
            id,
            &["/bin/sh", "-c", "echo $$; exec sleep 1000"],
            json!({"durable": durable, "startId": id}),
        );
        Watched::printed(&client.wait_for_output(id, "\n"))
    };
    let victims = ["killed", "asked to end", "signalled"].map(|id| started(&client, id, true));
    freeze(&host, &disk);

    // The keeper hangs in this one.
    let hung =
        client.send("process/start", with(start_params("hung", &["true"]), json!({"startId": "hung"})));
    disk.wait_until_hanging(1);
    let begun = Instant::now();
    let [killed, asked, signalled] = victims;
    let kill = client.call("process/terminate", json!({"processId": "killed"})).unwrap();
    assert_eq!(kill, json!({"running": true}));
    assert!(killed.ended_within(SOON), "{}", host.said());
    let mode = json!({"graceful": {"timeoutMs": 1000}});
    client.call("process/terminate", json!({"processId": "asked to end", "mode": mode})).unwrap();
    assert!(asked.ended_within(SOON), "{}", host.said());

    client.call("process/signal", json!({"processId": "signalled", "signal": "KILL"})).unwrap();
    assert!(signalled.ended_within(SOON), "{}", host.said());

    let other = started(&client, "other", false);
    client.call("process/terminate", json!({"processId": "other"})).unwrap();
    assert!(other.ended_within(SOON));

    let (new, _) = connect(&host);
    // It is not durable, and the session is not saved.
    new.start("default", &["/bin/sh", "-c", "echo $$; exec sleep 1000"], json!({}));
    let default = Watched::printed(&new.wait_for_output("default", "\n"));
    new.call("process/terminate", json!({"processId": "default"})).unwrap();
    assert!(default.ended_within(SOON));
    let refused =
        new.call("process/start", with(start_params("durable", &["true"]), json!({"durable": true})));
    let refused = refused.unwrap_err();
    assert!(refused["message"].as_str().unwrap().contains("could not be saved"), "{refused}");

    let failed = client.outcome(&hung).unwrap_err();
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("does not respond") && message.contains("disk"), "{failed}");
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());

    // It responds again, with what was there.
    for name in ["sessions", "processes", "spares"] {
        let path = host.state().join(name);
        fs::remove_file(&path).unwrap();
        fs::rename(host.state().join(format!("{name}.real")), path).unwrap();
    }
    drop(disk);
    poll("a durable start", || {
        let id = format!("again {:?}", begun.elapsed());
        client.call("process/start", start_params(&id, &["true"])).is_ok()
    });
    assert!(!host.said().contains("the keeper is gone"), "{}", host.said());
}
