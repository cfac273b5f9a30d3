//! Nothing leaks. A single test, because it counts the resources of the whole program.
#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{fs, task::Poll};

use harness::{NULL, PTY, TAGS, eventually, finish, own_children, pids, pipes, shell, spawner, start};
use remex_process::{Scope, tree};

#[tokio::test]
async fn no_process_descriptor_or_thread_leaks() {
    // The threads of the runtime and the one that reaps are there before the count.
    let spawner = spawner();
    finish(spawner.start(start(NULL, TAGS.tag(1, 0), "true", &[])).await.unwrap()).await;
    let before = (count("fd"), count("task"));
    let unchanged = || (count("fd"), count("task")) == before && own_children().is_empty();

    for number in 0..100 {
        for stdio in [NULL, PTY] {
            let child = spawner.start(start(stdio, TAGS.tag(1, number), "true", &[])).await.unwrap();
            assert_eq!(finish(child).await.1.code, 0);
            spawner.start(start(stdio, TAGS.tag(1, number), "/no/such/program", &[])).await.unwrap_err();
        }
    }
    assert!(unchanged(), "after ordinary starts");

    // Dropping a child kills it.
    for number in 0..50 {
        drop(spawner.start(start(NULL, TAGS.tag(2, number), "sleep", &["1000"])).await.unwrap());
    }
    eventually("dropped children are gone", unchanged).await;

    // Dropping the future of a start at any moment ends what it may have started, children included.
    for number in 0..50 {
        let script = "setsid sleep 1000 & sleep 1000";
        let tag = TAGS.tag(3, number);
        let mut future = Box::pin(spawner.start(shell(NULL, tag, script)));
        match std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            Poll::Pending => (0..number * 20).for_each(|_| std::thread::yield_now()),
            // So busy a machine that it was started before we looked: then it is ours to end.
            Poll::Ready(child) => {
                let child = child.unwrap();
                tree::kill(&Scope::Process(tag, child.exit.leader().clone())).wait().unwrap();
            }
        }
        drop(future);
    }
    eventually("abandoned starts are gone", || {
        unchanged() && pids(&Scope::Session(TAGS.tag(3, 0))).is_empty()
    })
    .await;

    // The threads of a spawner also end once nothing can need them any more, and not before.
    let second = harness::spawner();
    let child = second.start(start(harness::PIPED, TAGS.tag(4, 0), "cat", &[])).await.unwrap();
    drop(second);
    assert_ne!(count("task"), before.1);
    let (stdin, output) = pipes(child.io);
    drop((child.exit, stdin, output));
    eventually("the threads of the second spawner are gone", unchanged).await;
}

fn count(what: &str) -> usize {
    fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}
