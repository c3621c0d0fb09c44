// The frame of the Go suite: groups of checks, their report and their exit status.
// It knows the environment and opens no connection.
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"time"
)

type failure struct{ text string }
type skipped struct{ why string }

type group struct {
	name string
	run  func()
}

// settings says where to connect; run.sh sets the environment.
var settings = struct {
	host, port, user, password, db, family, socket string
	tls                                            bool
}{
	host: envOr("MILLRACE_TEST_HOST", "127.0.0.1"), port: os.Getenv("MILLRACE_TEST_PORT"),
	user: os.Getenv("MILLRACE_TEST_USER"), password: os.Getenv("MILLRACE_TEST_PASSWORD"),
	db: os.Getenv("MILLRACE_TEST_DB"), family: os.Getenv("MILLRACE_TEST_FAMILY"),
	socket: os.Getenv("MILLRACE_TEST_SOCKET"), tls: os.Getenv("MILLRACE_TEST_TLS") == "1",
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func isMySQL() bool { return settings.family == "mysql" }

// fail ends the running group; it must be called on the group's own goroutine.
func fail(format string, args ...any) {
	line := 0
	for depth := 1; depth < 12; depth++ {
		_, file, l, ok := runtime.Caller(depth)
		if ok && strings.HasSuffix(file, "/groups.go") {
			line = l
			break
		}
	}
	panic(failure{fmt.Sprintf("groups.go:%d: %s", line, fmt.Sprintf(format, args...))})
}

func skip(format string, args ...any) { panic(skipped{fmt.Sprintf(format, args...)}) }

func ok(err error, what ...any) {
	if err != nil {
		fail("%v %v", fmt.Sprint(what...), err)
	}
}

func equal(got, wanted any, what ...any) {
	if !reflect.DeepEqual(got, wanted) {
		fail("%s got %s, wanted %s", fmt.Sprint(what...), short(got), short(wanted))
	}
}

func isTrue(value bool, format string, args ...any) {
	if !value {
		fail(format, args...)
	}
}

func short(v any) string {
	s := fmt.Sprintf("%#v", v)
	if len(s) > 300 {
		return s[:280] + "…"
	}
	return s
}

// eventually is for reads on another session than the one that wrote: it may lag, not for ever.
func eventually(what string, condition func() bool) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if condition() {
			return
		}
	}
	fail("%s: not within 10 s", what)
}

func runAll(groups []group) int {
	passed, failed, left := 0, 0, 0
	only := os.Getenv("MILLRACE_TEST_ONLY")
	for _, g := range groups {
		if only != "" && !strings.Contains(g.name, only) {
			continue
		}
		begun := time.Now()
		switch outcome := outcomeOf(g.run).(type) {
		case nil:
			passed++
			fmt.Printf("ok   %s (%.2f s)\n", g.name, time.Since(begun).Seconds())
		case skipped:
			left++
			fmt.Printf("skip %s: %s\n", g.name, outcome.why)
		case failure:
			failed++
			fmt.Printf("FAIL %s: %s\n", g.name, outcome.text)
		default:
			failed++
			fmt.Printf("FAIL %s: panic: %v\n", g.name, outcome)
		}
	}
	fmt.Printf("%d passed, %d failed", passed, failed)
	if left > 0 {
		fmt.Printf(", %d skipped", left)
	}
	fmt.Println()
	if failed > 0 || passed == 0 {
		return 1
	}
	return 0
}

func outcomeOf(run func()) (outcome any) {
	defer func() { outcome = recover() }()
	run()
	return nil
}
