//! `info`: the honest table of what is held here, and by whom.

use super::read::process;
use crate::cli::Reading;
use crate::client::{Client, Target, typed};
use crate::error::{Error, printable};
use crate::output::{self, Screen, Table};
use ghost_model::key::Mode;
use ghost_model::report::Node;
use ghost_model::{GpuState, Key};

pub(super) async fn info(client: &Client, args: Reading) -> Result<(), Error> {
    let document = client.get(Target::new("/v1/node")).await?;
    if args.json()? {
        return output::document(&document);
    }
    output::print(&page(&typed("/v1/node", document)?, Screen::here()))
}

fn page(node: &Node, screen: Screen) -> String {
    let held = &node.capabilities;
    let none = || "none".to_owned();
    let patch = held.patch.clone().unwrap_or_else(|| match held.driver {
        Some(_) => "none: the driver is unmodified".into(),
        None => none(),
    });
    let mut facts = Table::headless(2);
    for (name, value) in [
        ("ghost", node.version.clone()),
        ("backend", held.backend.to_string()),
        ("driver", held.driver.clone().unwrap_or_else(none)),
        ("patch", patch),
        ("meter", held.meter.clone()),
    ] {
        facts.rows.push(vec![name.into(), value]);
    }
    for g in &node.gpus {
        let state = match &g.state {
            GpuState::Shared => "shared".to_owned(),
            GpuState::Refused(why) => format!("refused: {why}"),
        };
        facts.rows.push(vec![
            format!("gpu {}", g.index),
            format!("{} {}, {state}", g.id, g.name),
        ]);
    }
    if let Some(listener) = &node.overflow {
        let tls = match &listener.fingerprint {
            Some(fingerprint) => format!("fingerprint {fingerprint}"),
            None => "no TLS".to_owned(),
        };
        let token = match &listener.token_file {
            Some(path) => format!("token in {}", printable(path)),
            None => "no token".to_owned(),
        };
        facts.rows.push(vec![
            "overflow".into(),
            format!(
                "from other hosts at {}, {tls}, {token}, sessions: {}",
                listener.listen, listener.sessions
            ),
        ]);
    }
    for p in &node.strangers {
        facts
            .rows
            .push(vec!["stranger".into(), process(p, &node.gpus)]);
    }
    let plain = Screen {
        colour: false,
        ..screen
    };
    let mut out = facts.render(plain);
    out.push('\n');
    let mut table = Table::new(&["KEY", "ENFORCED BY", "MEANING"]);
    for key in Key::ALL.iter().filter(|k| k.mode() == Mode::Setting) {
        table.rows.push(vec![
            key.to_string(),
            held.enforcer(*key).to_string(),
            key.doc().to_owned(),
        ]);
    }
    out += &table.render(screen);
    for note in held.notes.iter().chain(&node.notes) {
        out += &format!("note: {}\n", printable(note));
    }
    out
}
