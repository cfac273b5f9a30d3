//! The tools as an MCP server, whatever the transport.

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CancelledNotificationParam, Implementation, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::{NotificationContext, RequestContext, ServerInitializeError},
    transport::stdio,
};

use crate::{Tools, answer::call_result, call::Call};

/// The instructions for models.
const INSTRUCTIONS: &str = "Tools to run commands and change files on this machine or on remote ones. Start long-running \
commands with `run_command` and a `name`; they go on running after `wait_seconds`, and even after this conversation. \
Read before you edit, and pass the `hash` that you got as `if_match` when others may change the file too.";

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("remex", env!("CARGO_PKG_VERSION")).with_title("remex"))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.list()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.list().into_iter().find(|tool| tool.name == name)
    }

    async fn on_cancelled(
        &self,
        notification: CancelledNotificationParam,
        _: NotificationContext<RoleServer>,
    ) {
        if let Some(id) = notification.request_id {
            self.cancellations.note(id);
        }
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = Call::new(context, self);
        let arguments = request.arguments.unwrap_or_default();
        match Box::pin(self.call(&request.name, arguments, &call)).await {
            Some(answer) => Ok(call_result(answer).into()),
            None => Err(ErrorData::new(
                rmcp::model::ErrorCode::INVALID_PARAMS,
                format!("there is no tool `{}`", request.name),
                None,
            )),
        }
    }
}

/// Serves one client on the standard streams until it closes them; then disconnects, and processes keep running.
///
/// # Errors
///
/// A sentence, if the client violates the handshake of the protocol.
pub async fn serve_stdio(tools: Tools) -> Result<(), String> {
    let service = match Box::pin(tools.clone().serve(stdio())).await {
        Ok(service) => service,
        // It has changed its mind.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let waited = service.waiting().await;
    tools.close().await;
    waited.map(drop).map_err(|error| error.to_string())
}
