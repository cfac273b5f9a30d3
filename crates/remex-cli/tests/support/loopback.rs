//! Connections from other addresses of loopback, and HTTP on them without waiting.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use super::{PATIENCE, Server};

/// Where attacks come from; good clients come from 127.0.0.1.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Connects from this address of loopback.
pub(crate) fn connect_from(source: Ipv4Addr, server: &Server) -> TcpStream {
    let (_, address) = server.address().split_once("://").expect("an address has a scheme");
    let address: SocketAddr = address.parse().expect("an address is an IP and a port");
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("there is room for a socket");
    bind(&socket, &SocketAddr::V4(SocketAddrV4::new(source, 0))).expect("all of 127.0.0.0/8 is ours");
    connect(&socket, &address).unwrap_or_else(|error| panic!("cannot connect from {source}: {error}"));
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
    stream
}

/// Sends a request and returns the status of the answer.
pub(crate) fn status_from(source: Ipv4Addr, server: &Server, request: &str) -> String {
    let mut stream = connect_from(source, server);
    stream.write_all(request.as_bytes()).expect("the server reads");
    status_line(&mut stream)
}

/// Waits for the status of an answer.
pub(crate) fn status_line(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer in time");
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Returns protocol and status of the answer, or nothing if there is none yet; does not wait.
pub(crate) fn answer_so_far(stream: &mut TcpStream) -> String {
    stream.set_nonblocking(true).expect("a socket has modes");
    let mut answer = [0; 12];
    let read = stream.read(&mut answer);
    stream.set_nonblocking(false).expect("a socket has modes");
    match read {
        Ok(len) => String::from_utf8_lossy(&answer[..len]).into_owned(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => String::new(),
        Err(error) => error.to_string(),
    }
}

/// Lets this program open as many connections as the host allows.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the hard limit allows it");
}
