//! `gpu list`, `gpu show`.

use super::read::process;
use crate::cli::{Gpu, GpuList, GpuShow};
use crate::client::{Client, Target, typed};
use crate::error::Error;
use crate::output::{self, Format, Screen, Table, size};
use ghost_model::report::{Container, Process};
use ghost_model::{Bytes, GpuInfo, GpuState};
use serde_json::Value as Json;

const COLUMNS: &[&str] = &["gpu", "uuid", "pci", "name", "memory", "total", "state"];

pub(super) async fn gpu(client: &Client, args: Gpu) -> Result<(), Error> {
    match args {
        Gpu::List(args) => list(client, args).await,
        Gpu::Show(args) => show(client, args).await,
    }
}

async fn list(client: &Client, args: GpuList) -> Result<(), Error> {
    let format = args.reading.wanted();
    if format == Format::Json {
        return output::document(&client.get(Target::new("/v1/gpus")).await?);
    }
    let gpus = client.gpus().await?;
    if args.quiet {
        return gpus.iter().try_for_each(|g| output::line(g.id.as_str()));
    }
    let columns: Vec<String> = match format {
        Format::Columns(columns) => columns,
        _ => COLUMNS.iter().map(|c| (*c).to_owned()).collect(),
    };
    if let Some(wrong) = columns.iter().find(|c| !COLUMNS.contains(&c.as_str())) {
        return Err(Error::usage(format!(
            "no column {wrong:?}: the columns are {}",
            COLUMNS.join(", ")
        )));
    }
    let table = Table {
        head: columns.iter().map(|c| c.to_uppercase()).collect(),
        rows: gpus
            .iter()
            .map(|g| columns.iter().map(|c| cell(g, c)).collect())
            .collect(),
    };
    output::print(&table.render(Screen::here()))
}

fn cell(g: &GpuInfo, column: &str) -> String {
    match column {
        "gpu" => g.index.to_string(),
        "uuid" => g.id.to_string(),
        "pci" => g.pci.clone(),
        "name" => g.name.clone(),
        "memory" => g.memory_used.map_or("-".into(), Bytes::human),
        "total" => g.memory_total.human(),
        _ => match &g.state {
            GpuState::Shared => "shared".into(),
            GpuState::Refused(why) => format!("refused: {why}"),
        },
    }
}

async fn show(client: &Client, args: GpuShow) -> Result<(), Error> {
    let gpus = client.gpus().await?;
    let id = client.gpu(&args.gpu).await?;
    let document = client.get(Target::new(&format!("/v1/gpus/{id}"))).await?;
    if args.reading.json()? {
        return output::document(&document);
    }
    let g: GpuInfo = typed("/v1/gpus", document)?;
    output::line(format!("GPU {}: {}", g.index, g.name))?;
    output::line(format!("  uuid    {}", g.id))?;
    output::line(format!("  pci     {}", g.pci))?;
    output::line(format!(
        "  memory  {} of {}",
        g.memory_used.map_or("-".into(), size),
        size(g.memory_total)
    ))?;
    output::line(format!("  state   {}", cell(&g, "state")))?;
    let all: Vec<Container> = typed(
        "/v1/containers",
        Json::Array(client.containers(None).await?),
    )?;
    let here = |p: &&Process| p.groups.contains_key(&id);
    for c in &all {
        for p in c.status.procs.iter().filter(here) {
            output::line(format!("  {}: {}", c.name, process(p, &gpus)))?;
        }
    }
    Ok(())
}
