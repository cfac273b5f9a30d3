//! Lookups that hang.

use std::sync::{Mutex, mpsc};

use tokio::sync::watch;

use super::*;

/// A proxy on which lookups of dead names hang until the test ends, and which says how many do.
fn with_dead_names() -> (Arc<Proxy>, watch::Receiver<usize>, mpsc::Sender<()>) {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let (hangs, hung) = watch::channel(0);
    let look_up = move |name: &str| {
        if name.starts_with("dead") {
            hangs.send_modify(|count| *count += 1);
            drop(held.lock().map(|held| held.recv()));
        }
        Ok(vec!["127.0.0.1".parse().unwrap()])
    };
    (Arc::new(Proxy::with_resolver(Resolver::new(look_up)).unwrap()), hung, release)
}

/// Asks for dead names in many jails of an identity, until as many lookups hang.
async fn hang(
    proxy: &Arc<Proxy>,
    identity: &str,
    jails: usize,
    hung: &mut watch::Receiver<usize>,
    expected: usize,
) -> JoinSet<()> {
    let mut asking = JoinSet::new();
    for _ in 0..jails {
        let exits = Arc::new(exits(&["*"], identity));
        for number in 0..3 * MAX_LOOKUPS_OF_PROCESS {
            let (proxy, exits) = (Arc::clone(proxy), Arc::clone(&exits));
            asking.spawn(async move { drop(proxy.look_up(&exits, &format!("dead-{number}")).await) });
        }
    }
    let hanging = hung.wait_for(|count| *count == expected);
    drop(timeout(PATIENCE, hanging).await.expect("as many lookups as may hang do").unwrap());
    asking
}

#[tokio::test]
async fn names_that_hang_in_some_jails_do_not_delay_the_lookups_of_another() {
    let (proxy, mut hung, _release) = with_dead_names();
    let _asking = hang(&proxy, "owner", 16, &mut hung, 16 * MAX_LOOKUPS_OF_PROCESS).await;
    let exits = exits(&["*"], "owner");
    let found = timeout(PATIENCE, proxy.look_up(&exits, "localhost"))
        .await
        .expect("it does not wait for dead names")
        .unwrap();
    assert_eq!(found, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
}

#[tokio::test]
async fn names_that_hang_for_one_identity_do_not_delay_the_lookups_of_another() {
    let (proxy, mut hung, _release) = with_dead_names();
    let _asking = hang(&proxy, "owner", MAX_LOOKUPS, &mut hung, MAX_LOOKUPS / 2).await;
    let exits = exits(&["*"], "user:ann");
    let looking = timeout(PATIENCE, proxy.look_up(&exits, "localhost"));
    looking.await.expect("it does not wait for another identity").unwrap();
}
