//! `apply`: containers as a file has them.

use super::read_file;
use crate::cli::Apply;
use crate::client::{Client, Target};
use crate::error::Error;
use crate::output;
use hyper::Method;
use serde_json::{Value as Json, json};
use std::time::Duration;

pub(super) async fn apply(client: &Client, args: Apply) -> Result<(), Error> {
    let shown = args.file.display();
    let declared = ghost_model::config::parse(&read_file(&args.file)?).map_err(|p| p.of(shown))?;
    let body: Vec<Json> = declared
        .into_iter()
        .map(|(name, d)| json!({ "name": name, "spec": Json::from(d.spec), "labels": d.labels }))
        .collect();
    let target = Target::new("/v1/apply")
        .flag("dry_run", args.dry_run)
        .flag("prune", args.prune);
    let answer = client
        .call(
            Method::POST,
            target,
            Some(&Json::Array(body)),
            Duration::ZERO,
        )
        .await?;
    let how = if args.dry_run { " (dry run)" } else { "" };
    let changes = answer.get("changes").and_then(Json::as_array);
    for change in changes.into_iter().flatten() {
        let text = |key| change.get(key).and_then(Json::as_str).unwrap_or_default();
        let line = match (text("what"), text("detail")) {
            (what, "") => what.to_owned(),
            (what, detail) if what == detail => what.to_owned(),
            (what, detail) => format!("{what}, {detail}"),
        };
        output::line(format!("{}: {line}{how}", text("name")))?;
    }
    Ok(())
}
