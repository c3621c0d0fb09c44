//! What the servers are asked for a name's accounts.

use std::fmt::Write;

use millrace_sql::Family;

use super::Name;

/// The plugins whose passwords are learnt. A socket's are nothing to relay.
const LEARNT: &str = "'mysql_native_password','caching_sha2_password','sha256_password','ed25519',\
    'authentication_ldap_simple','auth_socket','unix_socket'";

/// How MariaDB writes mysql_native_password.
const NATIVE: &str = "'','mysql_native_password'";

/// The plugins of [`Kept`].
const KEPT: &str = "'ed25519','parsec'";

/// Asks in which character set a client of that collation writes its name. It is the server's own for a collation that
/// there is not.
pub(crate) fn charset_question(collation: u8) -> String {
    format!(
        "SELECT IFNULL((SELECT CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID={collation}),\
         @@GLOBAL.character_set_client)"
    )
}

/// Whether a name has the same bytes in UTF-8, whatever a client of that collation says.
pub(crate) fn is_in_utf8(name: Name<'_>) -> bool {
    name.user.is_ascii()
        || matches!(name.collation, 33 | 45 | 46 | 76 | 83 | 192..=215 | 223..=247 | 255)
}

/// A name as an expression, in UTF-8. `charset`: in which it is written, by its name; none for UTF-8.
fn expression(user: &[u8], charset: Option<&str>) -> String {
    let name = user.iter().fold(String::from("x'"), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }) + "'";
    let name = match charset {
        Some(charset) => format!("CONVERT({name} USING {charset})"),
        None => name,
    };
    format!("CONVERT({name} USING utf8mb4)")
}

/// Whether a row has the name. Servers compare names byte for byte: case, accents and spaces at the end count.
fn has_name(name: &str) -> String {
    format!("User={name} COLLATE utf8mb4_bin AND LENGTH(User)=LENGTH({name})")
}

/// The question for a name's rights to be a proxy. `charset`: as for [`question`].
pub(crate) fn proxies_question(family: Family, user: &[u8], charset: Option<&str>) -> String {
    let name = expression(user, charset);
    let by_password = match family {
        Family::MySql => "@@check_proxy_users",
        Family::MariaDb => "0",
    };
    let has_name = has_name(&name);
    format!(
        "SELECT {by_password},Host,Proxied_host FROM mysql.proxies_priv WHERE ({has_name}) OR User=''"
    )
}

/// The question for the rows of a name. `charset`: in which it is written, by its name; none for UTF-8.
pub(crate) fn question(family: Family, user: &[u8], charset: Option<&str>) -> String {
    let name = expression(user, charset);
    let has_name = has_name(&name);
    match family {
        Family::MySql => format!(
            "SELECT @@skip_name_resolve,{name},User,Host,plugin='auth_socket' OR \
             JSON_SEARCH(User_attributes,'one','auth_socket',NULL,\
             '$.multi_factor_authentication[*].plugin') IS NOT NULL,\
             JSON_EXTRACT(User_attributes,'$.multi_factor_authentication') IS NOT NULL OR \
             plugin NOT IN ({LEARNT}),\
             plugin='mysql_native_password',\
             IF(plugin='mysql_native_password',authentication_string,''),'',\
             SHA2(CONCAT_WS(',',plugin,authentication_string),256),\
             JSON_EXTRACT(User_attributes,'$.additional_password') IS NOT NULL,\
             IFNULL(JSON_EXTRACT(User_attributes,'$.Password_locking.failed_login_attempts'),0)>0,\
             ssl_type,ssl_cipher,x509_issuer,x509_subject \
             FROM mysql.user WHERE ({has_name}) OR User=''"
        ),
        Family::MariaDb => {
            let plugins = MariaDbPlugins::new();
            let MariaDbPlugins {
                are_relayed,
                are_native,
                native_hashes,
                kept,
            } = &plugins;
            // -1, 0: nothing, 1: SSL, 2: X509, 3: what is given.
            format!(
                "SELECT @@skip_name_resolve,{name},User,Host,JSON_SEARCH(Priv,'one','unix_socket') IS NOT NULL,\
                 {are_relayed},{are_native},{native_hashes},{kept},\
                 SHA2(CONCAT_WS(',',JSON_VALUE(Priv,'$.plugin'),JSON_VALUE(Priv,'$.authentication_string'),\
                 JSON_EXTRACT(Priv,'$.auth_or')),256),\
                 0,@@max_password_errors<4294967295,\
                 IF(JSON_VALUE(Priv,'$.ssl_type')=3 AND IFNULL(JSON_VALUE(Priv,'$.x509_issuer'),'')='' AND \
                 IFNULL(JSON_VALUE(Priv,'$.x509_subject'),'')='','CIPHER',\
                 ELT(1+JSON_VALUE(Priv,'$.ssl_type'),'','ANY','X509','SPECIFIED')),\
                 JSON_VALUE(Priv,'$.ssl_cipher'),JSON_VALUE(Priv,'$.x509_issuer'),\
                 JSON_VALUE(Priv,'$.x509_subject') \
                 FROM mysql.global_priv WHERE (({has_name}) OR User='') \
                 AND IFNULL(JSON_VALUE(Priv,'$.is_role'),0)=0"
            )
        }
    }
}

/// So many plugins of one account are read (`VIA … OR …`). An account with more is relayed.
const ALTERNATIVES: usize = 16;

/// Expressions on the plugins of an account of MariaDB's.
struct MariaDbPlugins {
    are_relayed: String,
    are_native: String,
    native_hashes: String,
    kept: String,
}

impl MariaDbPlugins {
    fn new() -> MariaDbPlugins {
        // In the list, the account's first plugin is an empty object: it is written beside the list.
        let alternatives = (0..ALTERNATIVES).map(|at| format!("$.auth_or[{at}]"));
        let all: Vec<(String, String)> = std::iter::once("$".to_owned())
            .chain(alternatives)
            .map(|at| {
                let of = |key| format!("JSON_VALUE(Priv,'{at}.{key}')");
                (of("plugin"), of("authentication_string"))
            })
            .collect();
        let joined = |between: &str, each: &dyn Fn(&str, &str) -> String| {
            let each = all.iter().map(|(plugin, kept)| each(plugin, kept));
            each.collect::<Vec<_>>().join(between)
        };
        let too_many = format!("IFNULL(JSON_LENGTH(Priv,'$.auth_or'),0)>{ALTERNATIVES}");
        let (_, others) = all.split_at(1);
        let are_others_native: String = others
            .iter()
            .map(|(plugin, _)| format!(" AND IFNULL({plugin},'') IN ({NATIVE},'unix_socket')"))
            .collect();
        let first = &all[0].0;
        let are_relayed = joined(" OR ", &|plugin, _| {
            format!("IFNULL({plugin},'') NOT IN ('',{LEARNT})")
        });
        let native_hashes = joined(",", &|plugin, kept| {
            // An account without any plugin has an old form's password.
            let plugin = match plugin == first {
                true => format!("IFNULL({plugin},'')"),
                false => plugin.to_owned(),
            };
            format!("IF({plugin} IN ({NATIVE}),{kept},'')")
        });
        let kept = joined(",", &|plugin, kept| {
            format!("IF({plugin} IN ({KEPT}),CONCAT({plugin},' ',{kept}),NULL)")
        });
        MariaDbPlugins {
            are_relayed: format!("({are_relayed} OR {too_many})"),
            are_native: format!(
                "(IFNULL({first},'') IN ({NATIVE}){are_others_native} AND NOT {too_many})"
            ),
            native_hashes: format!("CONCAT_WS(',',{native_hashes})"),
            kept: format!("CONCAT_WS(',',{kept})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_in_the_clients_character_set() {
        let is_in_utf8 = |user, collation| is_in_utf8(Name { user, collation });
        assert!(is_in_utf8(b"app", 8) && is_in_utf8("ö".as_bytes(), 45) && !is_in_utf8(b"\xf6", 8));
        let question = |charset| question(Family::MySql, b"\xf6", charset);
        assert!(question(None).contains("User=CONVERT(x'f6' USING utf8mb4)"));
        let converted = "User=CONVERT(CONVERT(x'f6' USING latin1) USING utf8mb4)";
        assert!(question(Some("latin1")).contains(converted));
    }

    #[test]
    fn names_are_compared_byte_for_byte() {
        for family in [Family::MySql, Family::MariaDb] {
            for question in [
                question(family, b"n2 ", None),
                proxies_question(family, b"n2 ", None),
            ] {
                let name = "CONVERT(x'6e3220' USING utf8mb4)";
                let compared = format!(
                    "(User={name} COLLATE utf8mb4_bin AND LENGTH(User)=LENGTH({name})) OR User=''"
                );
                assert!(question.contains(&compared), "{question}");
            }
        }
    }

    #[test]
    fn every_alternative_of_an_account_is_read() {
        let question = question(Family::MariaDb, b"app", None);
        for at in 0..16 {
            let plugin = format!("'$.auth_or[{at}].plugin'");
            // Relayed, native, the hash, and twice what is kept.
            assert_eq!(question.matches(&plugin).count(), 5, "{plugin}");
        }
        assert_eq!(
            question
                .matches("JSON_LENGTH(Priv,'$.auth_or'),0)>16")
                .count(),
            2
        );
    }
}
