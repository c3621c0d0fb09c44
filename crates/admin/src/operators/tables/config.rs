//! SHOW CONFIG, SHOW VARIABLES and SHOW STATUS: the configuration in force, with what clients ask
//! of a server beside it.

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, text};
use crate::operators::sources::Sources;
use crate::operators::variables::variables as of_a_server;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Config,
    name: "CONFIG",
    also: &["CONFIGURATION"],
    statement: "SHOW CONFIG",
    help: "every key of the configuration with the value in force; secrets are not shown",
    columns: &[
        text(
            "name",
            "`section.key`; `section[1].key` for the first of several",
        ),
        text(
            "value",
            "as it would stand in the file; of a secret `(set)`",
        ),
        text("default", "`yes` where it is the default"),
    ],
    like: 0,
};

pub(crate) const VARIABLES: Listing = Listing {
    show: Show::Variables,
    name: "VARIABLES",
    also: &["VARIABLE"],
    statement: "SHOW VARIABLES",
    help: "the same, with the variables that clients ask of a server, in a server's columns",
    columns: &[
        text(
            "Variable_name",
            "a key of the configuration, or a server's variable",
        ),
        text("Value", "its value"),
    ],
    like: 0,
};

pub(crate) const STATUS: Listing = Listing {
    show: Show::Status,
    name: "STATUS",
    also: &[],
    statement: "SHOW STATUS",
    help: "",
    columns: &[text("Variable_name", ""), text("Value", "")],
    like: 0,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    for setting in &sources.settings().shown {
        let row = [
            setting.name.clone().into(),
            setting.value.clone().into(),
            setting.is_default.into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}

pub(crate) async fn variables(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    for (name, value) in of_a_server() {
        let value = value.text().map(std::borrow::Cow::into_owned);
        answer.row(&[name.into(), value.into()]).await?;
    }
    for setting in &sources.settings().shown {
        let row = [setting.name.clone().into(), setting.value.clone().into()];
        answer.row(&row).await?;
    }
    Ok(())
}

pub(crate) async fn status(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let rows: [(&'static str, u64); 2] = [
        ("Threads_connected", sources.registry.clients() as u64),
        ("Uptime", sources.started.elapsed().as_secs()),
    ];
    for (name, value) in rows {
        answer
            .row(&[name.into(), Cell::from(value.to_string())])
            .await?;
    }
    Ok(())
}
