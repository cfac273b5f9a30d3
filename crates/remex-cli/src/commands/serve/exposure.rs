//! Refuses to listen where anyone could connect.
//!
//! Start at [`check`].

use std::net::SocketAddr;

use remex::server_config::ServerConfig;
use remex_rpc::ListenAddress;

use crate::render::failure::Failure;

/// Refuses addresses that the settings do not protect.
pub(super) fn check(config: &ServerConfig, addresses: &[ListenAddress]) -> Result<(), Failure> {
    for address in addresses {
        match address {
            ListenAddress::WebSocket(socket) => check_socket(config, "ws", socket)?,
            ListenAddress::SecureWebSocket(_) if config.tls.cert.is_none() => {
                return Err(Failure::usage(
                    format!("cannot listen on {address} without a certificate"),
                    "add `--tls-cert PATH --tls-key PATH`, or `[tls]` with `cert` and `key` to the configuration file",
                ));
            }
            // Only clients with a certificate get as far as a request.
            ListenAddress::SecureWebSocket(_) if config.tls.client_ca.is_some() => {}
            ListenAddress::SecureWebSocket(socket) => check_socket(config, "wss", socket)?,
            _ => {}
        }
    }
    Ok(())
}

/// Refuses to open a port to the network without authentication.
pub(super) fn check_socket(config: &ServerConfig, scheme: &str, socket: &SocketAddr) -> Result<(), Failure> {
    let auth = &config.auth;
    let has_tokens = auth.token_file.is_some() || !auth.token_sha256.is_empty();
    let has_signed_tokens = auth.jwt.secret_file.is_some() || auth.jwt.jwks_file.is_some();
    if socket.ip().is_loopback() || has_tokens || has_signed_tokens {
        return Ok(());
    }
    let certificates = match scheme {
        "wss" => ", or `--tls-client-ca PATH`",
        _ => "",
    };
    Err(Failure::usage(
        format!("cannot listen on {scheme}://{socket} without authentication"),
        format!(
            "add `--ws-auth capability-token --ws-token-file PATH`{certificates}, or listen on 127.0.0.1"
        ),
    )
    .because("anyone who can reach it could run commands here"))
}
