// go-sql-driver/mysql run as an application would use it, text and prepared.
package main

import (
	"io"
	"log"
	"os"

	"github.com/go-sql-driver/mysql"
)

func main() {
	// Connections are killed on purpose here; the driver would write about each.
	_ = mysql.SetLogger(log.New(io.Discard, "", 0))
	os.Exit(runAll([]group{
		{"connect and identify", connectAndIdentify},
		{"wrong logins", wrongLogins},
		{"schema", schema},
		{"generated ids, prepared", generatedIDs()},
		{"generated ids, text", generatedIDs(asText)},
		{"found rows", foundRows},
		{"own writes at once, prepared", ownWrites()},
		{"own writes at once, text", ownWrites(asText)},
		{"transactions", transactions},
		{"deadlock", deadlock},
		{"fifty goroutines on thirty connections, prepared", crowd()},
		{"fifty goroutines on thirty connections, text", crowd(asText)},
		{"session settings", sessionSettings},
		{"prepared statements and DDL", preparedStatements},
		{"types, prepared", typesRoundTrip()},
		{"types, text", typesRoundTrip(asText)},
		{"multiple statements and results", multiStatements},
		{"stored procedures", storedProcedures},
		{"load data local", loadDataLocal},
		{"big blobs, prepared", bigBlobs()},
		{"big blobs, text", bigBlobs(asText)},
		{"errors", driverErrors},
		{"streaming, prepared", streaming()},
		{"streaming, text", streaming(asText)},
		{"contexts and KILL", contexts},
		{"life of a pool", poolLife},
		{"compression", compressed},
		{"clean up", cleanUp},
	}))
}
