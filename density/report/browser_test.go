package report

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	devpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

//go:embed testdata/look.js
var lookScript string

// shotsEnv is the environment variable with the folder in which the pages and their pictures are
// kept.
const shotsEnv = "REPORT_SHOTS"

const (
	phone   = 390
	desktop = 1440
)

// browser is a Chromium with a profile of its own.
type browser struct {
	context.Context
	shots string
}

// openBrowser starts a browser that ends with the test, and leaves no process and no file.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := testkit.Program(t, "chromium")
	profile, err := os.MkdirTemp("", "report-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	var command *exec.Cmd
	allocator, end := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(2*testkit.Patience),
		chromedp.NoSandbox, chromedp.DisableGPU, // the sandbox is not for root
		// The only messages come from the DevTools protocol's own socket.
		chromedp.ProxyServer("127.0.0.1:9"), chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("disable-breakpad", true), chromedp.Flag("disable-component-update", true),
		chromedp.Env("HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			command = cmd
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		}))...)
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		err := chromedp.Cancel(ctx) // waits for the browser
		closeTab()
		end()
		if command != nil && command.Process != nil {
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // those that it has left, if any
		}
		testkit.Eventually(t, func() error { return errors.Join(noProcess(profile), os.RemoveAll(profile)) })
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("end the browser: %v", err)
		}
	})
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	b := &browser{Context: ctx, shots: os.Getenv(shotsEnv)}
	if b.shots == "" {
		b.shots = t.TempDir()
	}
	return b
}

// noProcess returns an error as long as a process has the profile's path among its arguments.
func noProcess(profile string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(profile)) {
			return fmt.Errorf("%s is of the browser", file)
		}
	}
	return nil
}

// tab is a page in one look, with the page's error messages.
type tab struct {
	context.Context
	t   *testing.T
	url string

	mu     sync.Mutex // guards what follows
	faults []string
}

// show loads a file.
func (b *browser) show(t *testing.T, file string, width int64, colours string) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(b)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(ctx, 3*testkit.Patience)
	t.Cleanup(cancel)
	v := &tab{Context: ctx, t: t, url: (&url.URL{Scheme: "file", Path: file}).String()}
	chromedp.ListenTarget(ctx, v.event)
	v.do(
		network.Enable(), log.Enable(), runtime.Enable(),
		emulation.SetDeviceMetricsOverride(width, 900, 1, width == phone),
		scheme(colours),
		chromedp.Navigate(v.url),
	)
	return v
}

// scheme makes a page light or dark.
func scheme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

func (v *tab) event(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = "script error: " + e.ExceptionDetails.Error()
	case *runtime.EventConsoleAPICalled:
		fault = fmt.Sprintf("console: %s", e.Type)
	case *log.EventEntryAdded:
		fault = fmt.Sprintf("log: %s: %s", e.Entry.Level, e.Entry.Text)
	case *network.EventRequestWillBeSent:
		if e.Request.URL != v.url {
			fault = "request of " + e.Request.URL
		}
	case *devpage.EventJavascriptDialogOpening:
		fault = "dialog: " + e.Message
	}
	if fault != "" {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.faults = append(v.faults, fault)
	}
}

func (v *tab) do(actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v, actions...); err != nil {
		v.t.Fatal(err)
	}
}

// check reports the page's error messages.
func (v *tab) check() {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.faults {
		v.t.Error(f)
	}
}

// look reports the faults of the shown page.
func (v *tab) look(what string, plots int) {
	v.t.Helper()
	var seen struct {
		Faults []string
		Plots  int
	}
	v.do(chromedp.Evaluate(lookScript, &seen))
	for _, f := range seen.Faults {
		v.t.Errorf("%s: %s", what, f)
	}
	if seen.Plots < plots {
		v.t.Errorf("%s: %d plots are shown, of %d at least", what, seen.Plots, plots)
	}
}

// shoot makes a picture of the whole page, and checks its size and colours.
func (v *tab) shoot(file string, width int) {
	v.t.Helper()
	var data []byte
	v.do(chromedp.FullScreenshot(&data, 100))
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		v.t.Fatal(err)
	}
	size := picture.Bounds().Size()
	if size.X != width || size.Y < 600 {
		v.t.Errorf("the picture is %v, of a window of %d", size, width)
	}
	if colours, most := colours(picture); colours < 50 || most > .97 {
		v.t.Errorf("the picture has %d colours, one of which covers %.0f %%", colours, 100*most)
	}
}

// colours returns the colours of a picture, and the part that the most frequent one covers. It
// reads one pixel of nine.
func colours(picture image.Image) (int, float64) {
	counts := make(map[color.Color]int)
	most := 0
	size := picture.Bounds().Size()
	all := 0
	for y := 0; y < size.Y; y += 3 {
		for x := 0; x < size.X; x += 3 {
			c := picture.At(x, y)
			counts[c]++
			most = max(most, counts[c])
			all++
		}
	}
	return len(counts), float64(most) / float64(all)
}

// pagesToSee returns the pages of the samples, with the least number of plots on each.
func pagesToSee(t *testing.T, dir string) map[string]int {
	t.Helper()
	pages := make(map[string]int)
	put := func(name string, data []byte, err error, plots int) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".html"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = plots
	}
	all := samples()
	if r := loadCommitted(t); r != nil {
		all["committed"] = r
	}
	for name, r := range all {
		data, err := HTML(r)
		plots := 0
		for _, f := range r.Figures {
			if measured(f) {
				plots++
			}
		}
		put(name, data, err, plots)
	}
	before, after := full(1), full(1.3)
	data, err := ComparisonHTML(before, after)
	put("compare", data, err, len(before.Figures))
	data, err = ComparisonHTML(partial(), point())
	put("compare-partial", data, err, 0)
	return pages
}

// TestBrowser shows pages in one browser.
func TestBrowser(t *testing.T) {
	b := openBrowser(t)
	t.Run("pages", b.testPages)
	t.Run("hostile", b.testHostilePage)
}

// testPages shows all pages, on a telephone and on a desk, in light and dark. A picture of a
// long page takes a second of CPU time: only the soak takes all four of each page.
func (b *browser) testPages(t *testing.T) {
	for name, plots := range pagesToSee(t, b.shots) {
		for _, width := range []int{phone, desktop} {
			t.Run(fmt.Sprintf("%s/%d", name, width), func(t *testing.T) {
				v := b.show(t, filepath.Join(b.shots, name+".html"), int64(width), "light")
				picture := filepath.Join(b.shots, fmt.Sprintf("%s-%d-", name, width))
				v.look("light", plots)
				if testkit.Soaking() || width == desktop {
					v.shoot(picture+"light.png", width)
				}
				if width == phone {
					v.tour()
				} else {
					v.do(chromedp.Evaluate(`document.querySelectorAll('details').forEach((e) => { e.open = true })`, nil))
				}
				v.look("light, details open", plots)
				v.do(scheme("dark"))
				v.look("dark, details open", plots)
				if testkit.Soaking() || width == phone {
					v.shoot(picture+"dark.png", width)
				}
				v.check()
			})
		}
	}
}

// tour goes through the page with only the keyboard, and opens what is closed. The keyboard must
// reach everything that a pointer reaches.
func (v *tab) tour() {
	v.t.Helper()
	const reachable = `a[href], summary, [tabindex="0"]`
	var all int
	v.do(chromedp.Evaluate(`window.reached = new Set(); [...document.querySelectorAll('`+reachable+`')].filter((e) => e.checkVisibility()).length`, &all))
	var now struct {
		Closed bool // the focus is on something that can be opened
		Left   int  // not reached
	}
	for range 2*all + 20 {
		v.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`(() => {
			const e = document.activeElement;
			reached.add(e);
			return {
				closed: e.matches('details:not([open]) > summary'),
				left: [...document.querySelectorAll('`+reachable+`')].filter((e) => e.checkVisibility() && !reached.has(e)).length,
			};
		})()`, &now))
		if now.Closed {
			v.do(chromedp.KeyEvent(kb.Enter)) // what is inside has to be reached too
		} else if now.Left == 0 {
			break
		}
	}
	var open bool
	v.do(chromedp.Evaluate(`!document.querySelector('details:not([open])')`, &open))
	if now.Left > 0 || !open || all < 1 {
		v.t.Errorf("by the keyboard %d elements are not reached; all details are open: %v", now.Left, open)
	}
}

// testHostilePage shows results in which every text is written by an attacker.
func (b *browser) testHostilePage(t *testing.T) {
	for name, data := range hostilePages(t) {
		file := filepath.Join(b.shots, "hostile-"+name+".html")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		v := b.show(t, file, phone, "light")
		var found string
		v.do(chromedp.Evaluate(`(() => {
			const known = new Set('a body caption circle code dd details div dl dt g h1 h2 h3 head header html li line main meta nav ol p path pre rect section span strong style summary svg table tbody td text th thead title tr ul'.split(' '));
			const bad = [];
			for (const e of document.querySelectorAll('*')) {
				if (!known.has(e.localName)) bad.push('<' + e.localName + '>');
				for (const a of e.attributes) if (/^on|^style$|^src$/.test(a.name)) bad.push(a.name);
				if (e.localName === 'a' && !/^(#figure-[0-9]+|data:text\/csv;base64,[A-Za-z0-9+\/=]+|results\.(json|csv|md))$/.test(e.getAttribute('href'))) bad.push(e.getAttribute('href'));
			}
			if (document.querySelectorAll('style').length !== 1) bad.push('style');
			if (window.pwned) bad.push('a script ran');
			if (document.documentElement.scrollWidth > document.documentElement.clientWidth) bad.push('the page is too wide');
			return bad.join(' ');
		})()`, &found))
		if found != "" {
			t.Errorf("%s: %s", name, found)
		}
		// The policy forbids this script, even if it were on the page.
		var ran string
		v.do(chromedp.Evaluate(`(() => {
			const s = document.createElement('script');
			s.textContent = 'window.pwned = 1';
			document.body.append(s);
			const i = document.createElement('style');
			i.textContent = 'body { display: none }';
			document.body.append(i);
			return String(window.pwned) + getComputedStyle(document.body).display;
		})()`, &ran))
		if !strings.HasPrefix(ran, "undefined") || strings.HasSuffix(ran, "none") {
			t.Errorf("%s: the policy lets run what is not of the page: %s", name, ran)
		}
		for _, f := range v.faults {
			if !strings.Contains(f, "Content Security Policy") {
				t.Errorf("%s: %s", name, f)
			}
		}
		if len(v.faults) < 2 {
			t.Errorf("%s: the policy has refused %s of 2", name, strconv.Itoa(len(v.faults)))
		}
	}
}
