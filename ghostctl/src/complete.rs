//! Completion of names that only ghostd knows. A shell that asks gets an answer soon or none.

use crate::client::{Client, Target};
use crate::error::Error;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use ghost_model::Key;
use ghost_model::key::Mode;
use serde_json::Value as Json;
use std::time::Duration;

/// The variable that makes `ghostctl` answer a shell instead of doing something.
pub const VARIABLE: &str = "GHOSTCTL_COMPLETE";

/// The script that a shell sources, which asks `ghostctl` at each completion.
///
/// # Errors
/// A shell that is none of `bash`, `zsh`, `fish`.
pub fn script(shell: &str) -> Result<String, Error> {
    let completer: &dyn EnvCompleter = match shell {
        "bash" => &Bash,
        "zsh" => &Zsh,
        "fish" => &Fish,
        other => return Err(Error::usage(format!("no completion for {other:?}"))),
    };
    let mut out = Vec::new();
    completer
        .write_registration(VARIABLE, "ghostctl", "ghostctl", "ghostctl", &mut out)
        .map_err(|e| Error::io("completion", e))?;
    Ok(String::from_utf8_lossy(&out).trim_start().to_owned())
}

/// Containers of this host.
pub(crate) fn containers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        ask(async |client: Client| {
            let all = client.containers(None).await.unwrap_or_default();
            all.iter()
                .filter_map(|c| c.get("name").and_then(Json::as_str))
                .map(CompletionCandidate::new)
                .collect()
        })
    })
}

/// GPUs of this host.
pub(crate) fn gpus() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        ask(async |client: Client| {
            let all = client.gpus().await.unwrap_or_default();
            all.iter()
                .map(|g| {
                    CompletionCandidate::new(g.id.as_str())
                        .help(Some(format!("{} {}", g.index, g.name).into()))
                })
                .collect()
        })
    })
}

/// Peers of this host.
pub(crate) fn peers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        ask(async |client: Client| {
            let page = client.get(Target::new("/v1/peers")).await;
            let page = page.unwrap_or_default();
            let items = page.get("items").and_then(Json::as_array);
            items
                .into_iter()
                .flatten()
                .filter_map(|p| p.get("name").and_then(Json::as_str))
                .map(CompletionCandidate::new)
                .collect()
        })
    })
}

/// Keys.
pub(crate) fn keys() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(|_| true, ""))
}

/// `KEY=` of the keys that may be set.
pub(crate) fn assignments() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(|k| k.mode() == Mode::Setting, "="))
}

fn candidates(wanted: fn(Key) -> bool, suffix: &str) -> Vec<CompletionCandidate> {
    let keys = Key::ALL.iter().copied().filter(|k| wanted(*k));
    keys.map(|k| CompletionCandidate::new(format!("{k}{suffix}")).help(Some(k.doc().into())))
        .collect()
}

fn ask(question: impl AsyncFnOnce(Client) -> Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let client = Client::new(std::env::var_os("GHOST_SOCKET").map(Into::into), false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_or_else(
        |_| Vec::new(),
        |r| {
            r.block_on(async {
                tokio::time::timeout(Duration::from_secs(1), question(client))
                    .await
                    .unwrap_or_default()
            })
        },
    )
}
