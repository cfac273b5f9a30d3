//! Messages, requests and calls: what carries parameters and answers.

pub mod binary;
pub mod call;
pub mod message;
pub mod request;
