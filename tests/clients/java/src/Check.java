import java.time.Duration;
import java.util.Objects;

/** The frame of the Java suite: groups of checks, their report and their exit status. */
final class Check {
    private Check() {}

    static final class Skip extends RuntimeException {
        private static final long serialVersionUID = 1;

        Skip(String why) {
            super(why);
        }
    }

    interface Group {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    private static int passed, failed, skipped;

    static String env(String name, String otherwise) {
        String v = System.getenv("MILLRACE_TEST_" + name);
        return v == null || v.isEmpty() ? otherwise : v;
    }

    static void group(String name, Group run) {
        String only = env("ONLY", "");
        if (!name.contains(only)) {
            return;
        }
        long begun = System.nanoTime();
        try {
            run.run();
            passed++;
            System.out.printf("ok   %s (%.2f s)%n", name, (System.nanoTime() - begun) / 1e9);
        } catch (Skip why) {
            skipped++;
            System.out.printf("skip %s: %s%n", name, why.getMessage());
        } catch (Exception | AssertionError e) {
            failed++;
            String text = String.valueOf(e.getMessage()).replaceAll("\\s+", " ");
            System.out.printf("FAIL %s: %s: %s: %s%n", name, where(e), e.getClass().getSimpleName(),
                    text.length() > 400 ? text.substring(0, 380) + "…" : text);
        }
    }

    /** Prints the last line; the process's exit status. */
    static int finish() {
        System.out.printf("%d passed, %d failed%s%n", passed, failed, skipped > 0 ? ", " + skipped + " skipped" : "");
        return failed > 0 || passed == 0 ? 1 : 0;
    }

    /** The innermost line of the groups' own code. */
    private static String where(Throwable e) {
        for (StackTraceElement at : e.getStackTrace()) {
            if ("Main.java".equals(at.getFileName())) {
                return "Main.java:" + at.getLineNumber();
            }
        }
        return e.getCause() != null ? where(e.getCause()) : "?";
    }

    static void equal(Object got, Object wanted) {
        equal(got, wanted, "");
    }

    static void equal(Object got, Object wanted, String what) {
        if (!Objects.deepEquals(got, wanted)) {
            throw new AssertionError(what + " got " + cut(got) + ", wanted " + cut(wanted));
        }
    }

    static void isTrue(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static String cut(Object o) {
        String s = String.valueOf(o);
        return s.length() > 250 ? s.substring(0, 240) + "…" : s;
    }

    /** For reads on another session than the one that wrote: it may lag, but not for ever. */
    static void eventually(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (!condition.holds()) {
            isTrue(System.nanoTime() < end, what + ": not within 10 s");
            Thread.sleep(50);
        }
    }
}
