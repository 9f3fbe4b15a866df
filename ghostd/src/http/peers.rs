//! The hosts whose GPUs containers of this one may use, and the tickets to them.

use super::extract::{Body, Named, Query};
use super::problem::Reject;
use super::{App, Items, Refusals};
use crate::caller::Caller;
use crate::core::missing;
use crate::overflow::peers::Added;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use ghost_model::report::{Peer, Placement};
use ghost_model::value::ValueError;
use ghost_model::{Key, Kind, Problem};
use serde::Deserialize;
use serde_json::Value as Document;
use utoipa::{IntoParams, ToSchema};

/// Where a process wants to go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    /// A peer's name, or `HOST:PORT` of this host.
    on: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LookQuery {
    /// Ask each what it has free, which takes up to 2 s.
    #[serde(default)]
    look: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlacementQuery {
    /// As `gpu.overflow` has it, and instead of that.
    overflow: Option<String>,
}

/// List the peers
#[utoipa::path(get, path = "/v1/peers", tag = "node", params(LookQuery),
    responses((status = 200, body = Items<Peer>), Refusals))]
pub(super) async fn list(
    State(app): State<App>,
    Query(query): Query<LookQuery>,
) -> Json<Items<Peer>> {
    let items = if query.look {
        app.overflow.peers().await
    } else {
        app.overflow.peers.list()
    };
    Json(Items { items })
}

/// Add a peer, or change one
#[utoipa::path(put, path = "/v1/peers/{peer}", tag = "node",
    params(("peer" = String, Path, description = "Its name")),
    request_body = Added,
    responses((status = 204), Refusals))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    Body(added): Body<Added>,
) -> Result<StatusCode, Reject> {
    caller.administers("add peers")?;
    app.overflow.peers.put(&path?, added)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Forget a peer
#[utoipa::path(delete, path = "/v1/peers/{peer}", tag = "node",
    params(("peer" = String, Path, description = "Its name")),
    responses((status = 204), Refusals))]
pub(super) async fn remove(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Reject> {
    caller.administers("remove peers")?;
    app.overflow.peers.remove(&path?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Drain a peer: no program begins there until it is joined again
#[utoipa::path(post, path = "/v1/peers/{peer}/drain", tag = "node",
    params(("peer" = String, Path, description = "Its name")),
    responses((status = 204), Refusals))]
pub(super) async fn drain(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Reject> {
    caller.administers("drain peers")?;
    app.overflow.peers.drain(&path?, true)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Join a peer that was drained
#[utoipa::path(post, path = "/v1/peers/{peer}/join", tag = "node",
    params(("peer" = String, Path, description = "Its name")),
    responses((status = 204), Refusals))]
pub(super) async fn join(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Reject> {
    caller.administers("join peers")?;
    app.overflow.peers.drain(&path?, false)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get a ticket by which a process of the container computes on a peer
///
/// The ticket has the peer's secret: it is for those who may put processes into the container.
#[utoipa::path(post, path = "/v1/containers/{name}/ticket", tag = "containers",
    params(("name" = String, Path, description = "Container; `/` as `%2F`")),
    request_body = Wish,
    responses((status = 200, body = serde_json::Value), Refusals))]
pub(super) async fn ticket(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Body(wish): Body<Wish>,
) -> Result<Json<Document>, Reject> {
    let catalog = app.core.catalog();
    let entry = catalog.entries.get(&name).ok_or_else(|| missing(&name))?;
    if entry.owner != caller.uid {
        caller.administers(&format!("let processes of {name} compute on a peer"))?;
    }
    let uid = app
        .proc
        .new_uid()
        .map_err(|e| Problem::new(Kind::Unavailable, format!("no unique id for a ticket: {e}")))?;
    let stats = app.overflow.stats.name(&uid);
    let ticket = app.overflow.peers.ticket(&wish.on, entry, &stats)?;
    let document = serde_json::to_value(&ticket);
    let document = document.map_err(|e| Problem::new(Kind::Unavailable, e.to_string()))?;
    Ok(Json(document))
}

/// Say where a program of the container would compute
///
/// `gpu.overflow` decides, and of `auto` and `always` what is free here and on the peers now.
/// Nothing is kept for the program.
#[utoipa::path(get, path = "/v1/containers/{name}/placement", tag = "containers",
    params(("name" = String, Path, description = "Container; `/` as `%2F`"), PlacementQuery),
    responses((status = 200, body = Placement), Refusals))]
pub(super) async fn placement(
    State(app): State<App>,
    Named(name): Named,
    Query(query): Query<PlacementQuery>,
) -> Result<Json<Placement>, Reject> {
    let catalog = app.core.catalog();
    let entry = catalog.entries.get(&name).ok_or_else(|| missing(&name))?;
    let rule = match query.overflow {
        None => entry.spec().overflow(),
        Some(text) => text
            .parse()
            .map_err(|why: ValueError| Problem::field(Kind::Invalid, Key::Overflow, why))?,
    };
    let now = app.observed();
    let placement = app.overflow.place(rule, entry, &catalog, &now).await?;
    Ok(Json(placement))
}
