package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CPU time that others spend for a container is charged to it: the agent lowers its CPU quota by
// this time. A request names a container by its name, by the engine's id, or by the path of its
// cgroup in the hierarchy of the cpu controller, which begins with "/".

// Limits of requests.
const (
	ChargeMax       = time.Hour // of one charge
	ChargesMax      = 1000      // charges in one request
	ChargeSourceMax = 31        // bytes of a source's name
	LetGoMax        = time.Minute
)

// SourceDefault is the source of a charge that names none.
const SourceDefault = "api"

// Ways in which the time of a helper is taken from its container.
const (
	ByAuto  = "auto"  // by place where that is possible, else by quota
	ByPlace = "place" // the helper is moved under the container's quota: exact
	ByQuota = "quota" // the helper's time is subtracted from the container's quota
	ByMarks = "marks" // only in answers: a part of a shared daemon's time, by quota
)

// Charge is CPU time that was spent for a container.
type Charge struct {
	Container string `json:"container"`
	// Source names who spent it: at most ChargeSourceMax letters, digits, "_", "." and "-".
	// Empty stands for SourceDefault.
	Source string `json:"source,omitempty"`
	// Microseconds is more than 0 and at most ChargeMax.
	Microseconds int64 `json:"microseconds"`
}

// ChargeRequest charges one container by its first three fields, or several by Charges. The daemon
// charges all of them or none.
//
//	POST /v1/charge
type ChargeRequest struct {
	Container string `json:"container,omitempty"`
	Source    string `json:"source,omitempty"`
	// Duration has the syntax of ParseCharge.
	Duration string   `json:"duration,omitempty"`
	Charges  []Charge `json:"charges,omitempty"`
}

// All checks a request and returns its charges. Each has a source.
func (r *ChargeRequest) All() ([]Charge, error) {
	all := slices.Clone(r.Charges)
	single := r.Container != "" || r.Source != "" || r.Duration != ""
	switch {
	case single && len(all) > 0:
		return nil, errors.New(`charge: write "container" and "duration", or "charges", not both`)
	case single:
		d, err := ParseCharge(r.Duration)
		if err != nil {
			return nil, err
		}
		all = []Charge{{Container: r.Container, Source: r.Source, Microseconds: d.Microseconds()}}
	case len(all) == 0:
		return nil, errors.New(`charge: nothing is charged: write "container" and "duration", or "charges"`)
	case len(all) > ChargesMax:
		return nil, fmt.Errorf("charge: %d charges are too many for a request, which takes %d", len(all), ChargesMax)
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c *Charge) check() error {
	if c.Source == "" {
		c.Source = SourceDefault
	}
	if err := CheckChargeTarget(c.Container); err != nil {
		return err
	}
	if err := CheckSource(c.Source); err != nil {
		return err
	}
	// Before it is multiplied, which could overflow.
	if c.Microseconds <= 0 || c.Microseconds > ChargeMax.Microseconds() {
		return fmt.Errorf("charge %s: %d microseconds: it takes more than 0 and at most %d",
			c.Container, c.Microseconds, ChargeMax.Microseconds())
	}
	return nil
}

// Duration returns the charged time.
func (c *Charge) Duration() time.Duration { return time.Duration(c.Microseconds) * time.Microsecond }

// ParseCharge parses a time such as 1500us or 1.5ms. It must be a whole number of microseconds, more
// than 0 and at most ChargeMax.
func ParseCharge(text string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(text, 64); err == nil && strings.ContainsAny(text[len(text)-1:], "0123456789.") {
		return 0, fmt.Errorf("duration %q: give a unit, as in %sus", text, text)
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("duration %q: write a time as in 1500us or 1.5ms", text)
	case d <= 0:
		return 0, fmt.Errorf("duration %q: it takes more than 0", text)
	case d > ChargeMax:
		return 0, fmt.Errorf("duration %q: it takes at most %v", text, ChargeMax)
	case d%time.Microsecond != 0:
		return 0, fmt.Errorf("duration %q: it takes whole microseconds", text)
	}
	return d, nil
}

// CheckChargeTarget checks the syntax of a container's name, or of a cgroup's path, in a charge.
func CheckChargeTarget(name string) error {
	const longest = 4095 // PATH_MAX
	switch {
	case name == "":
		return errors.New("a container is missing: its name, or its cgroup's path")
	case len(name) > longest:
		return fmt.Errorf("the name of a container is longer than %d bytes", longest)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
		return fmt.Errorf("%q is no name of a container", name)
	case name[0] == '/':
		if name != "/" && slices.ContainsFunc(strings.Split(name[1:], "/"), func(part string) bool {
			return part == "" || part == "." || part == ".."
		}) {
			return fmt.Errorf("container %s: write the path of a cgroup without empty parts, \".\" and \"..\"", name)
		}
	case strings.Contains(name, "/"):
		return fmt.Errorf("container %s: the path of a cgroup begins with /", name)
	}
	return nil
}

// CheckSource checks the name of a source.
func CheckSource(source string) error {
	if len(source) > ChargeSourceMax || strings.ContainsFunc(source, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	}) {
		return fmt.Errorf("source %q: write at most %d letters, digits, _, . and -", source, ChargeSourceMax)
	}
	return nil
}

// ChargeHelper asks the daemon to measure a process, or a cgroup, that works for containers.
//
//	POST /v1/charge/helpers
type ChargeHelper struct {
	Helper HelperProcess `json:"helper"`
	// To is the container; empty if Shared.
	To string `json:"to,omitempty"`
	// Source is as in Charge. Empty stands for the process's command name, or the last part of
	// its cgroup's path.
	Source string `json:"source,omitempty"`
	// By is ByAuto, ByPlace or ByQuota; empty stands for ByAuto.
	By string `json:"by,omitempty"`
	// Shared says that the process works for several containers. The files that it reads and
	// writes say for which.
	Shared bool `json:"shared,omitempty"`
}

// HelperProcess is a process, or all processes of a cgroup.
type HelperProcess struct {
	PID   int    `json:"pid,omitempty"`
	Group string `json:"group,omitempty"` // its path, which begins with /
}

// Check checks the request's syntax.
func (h *ChargeHelper) Check() error {
	p := h.Helper
	switch {
	case p.PID < 0 || (p.PID == 0) == (p.Group == ""):
		return errors.New(`helper: write "pid" or "group"`)
	case p.Group != "" && p.Group[0] != '/':
		return fmt.Errorf("helper %q: the path of a cgroup begins with /", p.Group)
	case h.Shared && h.To != "":
		return errors.New("helper: a shared one is no single container's")
	case h.Shared && p.PID == 0:
		return errors.New("helper: a shared one is a process")
	case h.Shared && h.By == ByPlace:
		return errors.New("helper: a shared one has no place under one container's quota")
	case !slices.Contains([]string{"", ByAuto, ByPlace, ByQuota}, h.By):
		return fmt.Errorf("helper: by %q: write %s, %s or %s", h.By, ByAuto, ByPlace, ByQuota)
	}
	if p.Group != "" {
		if err := CheckChargeTarget(p.Group); err != nil {
			return err
		}
	}
	if h.Shared {
		return CheckSource(h.Source)
	}
	return errors.Join(CheckChargeTarget(h.To), CheckSource(h.Source))
}

// ChargeAttached is a helper that is measured until its process ends.
type ChargeAttached struct {
	ID        string        `json:"id"`
	Container string        `json:"container,omitempty"` // empty if it is shared
	Source    string        `json:"source,omitempty"`
	Helper    HelperProcess `json:"helper"`
	By        string        `json:"by"`               // ByPlace, ByQuota or ByMarks
	Reason    string        `json:"reason,omitempty"` // why not ByPlace
}

// Charges has all accounts.
//
//	GET /v1/charge
type Charges struct {
	Time       string           `json:"time"`       // RFC 3339, with nanoseconds
	Containers []Charged        `json:"containers"` // by name
	Helpers    []ChargeAttached `json:"helpers"`    // by id
	Shared     []ChargeShared   `json:"shared"`     // by pid
}

// Charged is the account of a container. Times are in microseconds.
type Charged struct {
	Container string `json:"container"` // its name, or its cgroup's path
	ID        string `json:"id"`        // as its engine calls it; may be empty
	Group     string `json:"group"`     // the path of its cgroup
	Version   string `json:"version"`   // of cgroups: v1, hybrid or v2
	// Mode is "quota", or "account only: " with the reason why nothing is taken.
	Mode string `json:"mode"`
	// Since is the time of the first charge, maybe by a former agent: RFC 3339 with nanoseconds.
	// OwnUS and Borrowed count from then on.
	Since string `json:"since"`
	// Before is the limit that the container was given, After the limit that is in force now.
	Before ChargeLimit `json:"before"`
	After  ChargeLimit `json:"after"`
	// OwnUS is the time that the container itself has spent.
	OwnUS int64 `json:"own_us"`
	// Borrowed is the time that others have spent for it, by source.
	Borrowed []Borrowed `json:"borrowed"`
	// DebtUS will be subtracted from the quota of the next periods. CarriedUS is the part of it
	// that is subtracted slowly, so that the container does not stop for too long. ForgivenUS
	// exceeded the largest debt, and is never subtracted.
	DebtUS     int64           `json:"debt_us"`
	CarriedUS  int64           `json:"carried_us"`
	ForgivenUS int64           `json:"forgiven_us"`
	Held       ChargeHeld      `json:"held"`
	Throttled  ChargeThrottled `json:"throttled"`
	// Pressure is the CPU pressure of the container's cgroup; nil where the kernel does not
	// measure pressure by cgroup.
	Pressure *ChargePressure `json:"pressure,omitempty"`
}

// ChargeLimit is the CPU quota of a cgroup.
type ChargeLimit struct {
	QuotaUS  int64 `json:"quota_us"` // in each period; -1 is no limit
	PeriodUS int64 `json:"period_us"`
	BurstUS  int64 `json:"burst_us"`
}

// Borrowed is the time that one source has spent for a container.
type Borrowed struct {
	Source string `json:"source"`
	US     int64  `json:"us"`
	By     string `json:"by"` // ByPlace, ByQuota or ByMarks
}

// ChargeHeld says how often and how long a container was frozen, because its debt was more than a
// lower quota can take.
type ChargeHeld struct {
	Now       bool   `json:"now"`
	TotalUS   int64  `json:"total_us"`
	LongestUS int64  `json:"longest_us"`
	Count     uint64 `json:"count"`
	TooLong   uint64 `json:"too_long"` // of Count: longer than is meant to be
}

// ChargeThrottled has the kernel's counters for the container's quota.
type ChargeThrottled struct {
	Periods   uint64 `json:"periods"`
	Throttled uint64 `json:"throttled"` // of Periods: those in which it used all
	US        int64  `json:"us"`
}

// ChargePressure is the part of the last 10, 60 and 300 seconds, in percent, in which some program
// of the container waited for a CPU; and the sum of that time.
type ChargePressure struct {
	Some10  float64 `json:"some10"`
	Some60  float64 `json:"some60"`
	Some300 float64 `json:"some300"`
	TotalUS int64   `json:"total_us"`
}

// ChargeShared is a process that works for several containers.
type ChargeShared struct {
	PID       int    `json:"pid"`
	Comm      string `json:"comm"`
	US        int64  `json:"us"`         // all that it has spent
	UnownedUS int64  `json:"unowned_us"` // of it, what is no container's
}

// ChargeLetGo asks the daemon not to hold a container for some time, and to thaw it if it is held.
// A caller does so before it pauses or deletes the container or starts a program in it.
//
//	POST /v1/charge/CONTAINER/let-go
type ChargeLetGo struct {
	For string `json:"for"` // as in 2s; at most LetGoMax
}

// UnknownError names those containers of a request that do not exist. It is an ErrNotFound.
type UnknownError struct {
	Message    string
	Containers []string
}

func (e *UnknownError) Error() string { return e.Message }

// Is reports whether target is ErrNotFound or ErrRefused.
func (e *UnknownError) Is(target error) bool { return target == ErrNotFound || target == ErrRefused }

// Charge charges a container. It returns ErrNotFound if the container does not exist.
func (c *Client) Charge(container, source string, d time.Duration) error {
	r := ChargeRequest{Container: container, Source: source, Duration: d.String()}
	return c.Do(http.MethodPost, "/v1/charge", r, nil)
}

// ChargeBatch charges several containers, or none of them if it fails. It returns an UnknownError
// if some of them do not exist.
func (c *Client) ChargeBatch(charges []Charge) error {
	return c.Do(http.MethodPost, "/v1/charge", ChargeRequest{Charges: charges}, nil)
}

// AttachHelper has a helper measured. It returns ErrNotFound if the container or the process does
// not exist.
func (c *Client) AttachHelper(h ChargeHelper) (answer ChargeAttached, err error) {
	err = c.Do(http.MethodPost, "/v1/charge/helpers", h, &answer)
	return answer, err
}

// DetachHelper ends the measuring of a helper. It returns ErrNotFound if there is no such helper.
func (c *Client) DetachHelper(id string) error {
	return c.Do(http.MethodDelete, "/v1/charge/helpers/"+url.PathEscape(id), nil, nil)
}

// Charges returns all accounts.
func (c *Client) Charges() (all Charges, err error) {
	err = c.Do(http.MethodGet, "/v1/charge", nil, &all)
	return all, err
}

// LetGo asks the daemon not to hold a container for some time. Without a daemon no container is
// held: a daemon that ends thaws all of them.
func (c *Client) LetGo(container string, d time.Duration) error {
	path := "/v1/charge/" + url.PathEscape(container) + "/let-go"
	return c.Do(http.MethodPost, path, ChargeLetGo{For: d.String()}, nil)
}
