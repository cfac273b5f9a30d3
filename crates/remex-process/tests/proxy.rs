//! The socket of a jail for the proxy can be handed from process to process.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod harness;
mod inmate;

use std::{
    io::{IoSlice, IoSliceMut, Read as _},
    mem::MaybeUninit,
    net::TcpStream,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use harness::{finish, spawner, within};
use inmate::{confined, jail, orders, preset, report, reports};
use remex_process::{PROXY_PORT, ProxySocket};
use remex_sandbox::{HostList, Preset};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::AsyncWriteExt as _;

/// Sends descriptors over a unix socket and receives them, as two processes do.
fn handed_over((socket, init): (OwnedFd, OwnedFd)) -> (OwnedFd, OwnedFd) {
    let (here, there) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    let descriptors = [socket.as_fd(), init.as_fd()];
    assert!(sent.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(&here, &[IoSlice::new(b"x")], &mut sent, SendFlags::empty()).unwrap();
    drop((socket, init));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&there, &mut [IoSliceMut::new(&mut [0])], &mut received, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptors = received.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let Ok([socket, init]) = <[OwnedFd; 2]>::try_from(descriptors.collect::<Vec<_>>()) else {
        panic!("two descriptors were sent")
    };
    (socket, init)
}

async fn answer(proxy: &ProxySocket, text: &str) {
    let mut stream = within(proxy.accept()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Not a test of its own: what this program does in a jail.
#[test]
fn inmate() {
    if orders().is_none() {
        return;
    }
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", PROXY_PORT)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        report(&text);
    }
}

#[tokio::test]
async fn a_duplicate_accepts_connections_after_the_first_socket_was_dropped() {
    let hosts = HostList::parse(["example.org"], []).unwrap();
    let policy = preset(Preset::ReadOnly, Path::new("/")).with_hosts(hosts.into());
    let mut child = spawner().start(confined(jail(policy), "inmate", "connect")).await.unwrap();
    let first = child.proxy.take().unwrap();
    answer(&first, "first").await;

    let kept = first.to_parts().unwrap();
    drop(first);
    let copy = (kept.0.try_clone().unwrap(), kept.1.try_clone().unwrap());
    let second = ProxySocket::from_parts(handed_over(copy)).unwrap();
    answer(&second, "second").await;

    drop(second.into_parts().unwrap());
    let third = ProxySocket::from_parts(handed_over(kept)).unwrap();
    tokio::select! {
        biased;
        () = third.jail_ended() => panic!("the jail has not ended"),
        () = answer(&third, "third") => {}
    }
    let (output, status) = finish(child).await;
    assert_eq!((reports(&output), status.code), (vec!["first", "second", "third"], 0), "{output}");
    within(third.jail_ended()).await;
}
