//! `peer`: the hosts whose GPUs containers of this one may use.

use super::read_file;
use crate::cli::{Peer, PeerAdd, Reading};
use crate::client::{Client, Target, typed};
use crate::error::Error;
use crate::output::{self, Screen, Table};
use ghost_model::report::{self, Look};
use hyper::Method;
use serde_json::{Value as Json, json};
use std::time::Duration;

pub(super) async fn peer(client: &Client, args: Peer) -> Result<(), Error> {
    match args {
        Peer::Add(args) => add(client, args).await,
        Peer::List(args) => list(client, &args).await,
        Peer::Join { name } => change(client, &name, "/join", "joined").await,
        Peer::Drain { name } => change(client, &name, "/drain", "drained").await,
        Peer::Remove { name } => {
            let target = Target::peer(&name, "");
            client
                .call(Method::DELETE, target, None, Duration::ZERO)
                .await?;
            output::line(format!("{name}: removed"))
        }
    }
}

async fn change(client: &Client, name: &str, below: &str, done: &str) -> Result<(), Error> {
    let target = Target::peer(name, below);
    client
        .call(Method::POST, target, None, Duration::ZERO)
        .await?;
    output::line(format!("{name}: {done}"))
}

async fn add(client: &Client, args: PeerAdd) -> Result<(), Error> {
    let token = args.token_file.map(|path| read_file(&path)).transpose()?;
    let body = json!({
        "address": args.address,
        "token": token.unwrap_or_default().trim(),
        "fingerprint": args.fingerprint.unwrap_or_default(),
    });
    let target = Target::peer(&args.name, "");
    client
        .call(Method::PUT, target, Some(&body), Duration::ZERO)
        .await?;
    output::line(format!("{}: added ({})", args.name, args.address))
}

async fn list(client: &Client, args: &Reading) -> Result<(), Error> {
    let target = Target::new("/v1/peers").flag("look", true);
    let document = client.get(target).await?;
    if args.json()? {
        return output::document(&document);
    }
    let items = document.get("items").cloned().unwrap_or(Json::Null);
    let peers: Vec<report::Peer> = typed("/v1/peers", items)?;
    let heads = [
        "NAME",
        "ADDRESS",
        "STATE",
        "RTT",
        "FREE",
        "TOKEN",
        "FINGERPRINT",
    ];
    let mut table = Table::new(&heads);
    for peer in peers {
        let token = if peer.token { "kept" } else { "none" };
        let fingerprint = peer
            .fingerprint
            .unwrap_or_else(|| "none: no TLS".to_owned());
        let (reached, rtt, free) = match &peer.look {
            Some(Look::Reached { rtt_usec, gpus, .. }) => {
                let free = gpus.iter().map(|gpu| gpu.memory_free.human());
                let free = free.collect::<Vec<_>>().join(" ");
                (true, format!("{:.1}ms", *rtt_usec as f64 / 1e3), free)
            }
            Some(Look::Failed { reason }) => {
                output::note(format!("{}: {reason}", peer.name));
                (false, "-".into(), "-".into())
            }
            None => (true, "-".into(), "-".into()),
        };
        let state = match (peer.drained, reached) {
            (true, _) => "drained",
            (false, true) => "joined",
            (false, false) => "unreachable",
        };
        let row = [
            peer.name,
            peer.address,
            state.into(),
            rtt,
            free,
            token.into(),
            fingerprint,
        ];
        table.rows.push(row.into());
    }
    output::print(&table.render(Screen::here()))
}
