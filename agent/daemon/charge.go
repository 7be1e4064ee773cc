package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/internal/cputime"
)

// chargeMax is the largest request to charge something, in bytes.
const chargeMax = 1 << 20

// Sources of the CPU time that the agent and its helpers use for a container.
const (
	sourceIntercept = "intercept" // answering calls and making sockets
	sourceRelay     = "relay"     // carrying datagrams
	sourceGate      = "gate"      // gates and keepers
)

// startCharging begins to charge, if the configuration says so. If the agent cannot charge, it runs
// without.
func (d *Daemon) startCharging() {
	c := d.config.Load()
	if !c.Charge.Enabled {
		return
	}
	var err error
	d.accounts, err = accounts.Start(accounts.Config{
		Journal:   filepath.Join(c.RunDir, "charge.journal"),
		Ledger:    filepath.Join(c.StateDir, "charge.ledger"),
		Placement: c.Charge.Placement, Burst: c.Charge.Burst, Discovery: c.Charge.Discovery, Within: c.Charge.Within, Softirq: c.Charge.Softirq,
		Shared: rules.Plain(c.Charge.Shared), Log: d.log,
	})
	if err != nil {
		d.log.Error("CPU time is not charged", "err", err)
	}
}

// charge opens the account of a container that has its first program. Without an account, the
// container is not charged.
func (m *managed) charge() {
	first := m.First()
	if m.d.accounts == nil || m.Programs || first == nil {
		return // programs of tsugiki run are in a cpu cgroup of others
	}
	intercepted, relayed := m.Clocks()
	err := m.d.accounts.Open(accounts.Container{
		Name: m.Name, ID: m.ID, PID: first.PID, Sockets: m.SocketsGroup(),
		Sources: map[string]accounts.Clock{
			sourceIntercept: intercepted, sourceRelay: relayed, sourceGate: cputime.Group(m.SocketsGroup()),
		},
	})
	if err != nil {
		m.log.Warn("CPU time is not charged", "err", err)
	}
}

// chargeRoutes returns the routes of docs/API.md for charges.
func (d *Daemon) chargeRoutes() httpapi.Routes {
	return httpapi.Routes{
		"POST /v1/charge":                    d.handleCharge,
		"GET /v1/charge":                     d.handleCharges,
		"POST /v1/charge/helpers":            d.handleHelper,
		"DELETE /v1/charge/helpers/{helper}": d.handleDetach,
		"POST /v1/charge/{account}/let-go":   d.handleLetGo,
	}
}

var errNotCharging = errors.New("this agent does not charge CPU time; set enabled = true below [charge] in its configuration, or see its log")

// charging reads a request, if there is one, and carries it out.
func (d *Daemon) charging(w http.ResponseWriter, r *http.Request, request any, do func() (status int, result any, err error)) {
	if d.accounts == nil {
		httpapi.Answer(w, http.StatusServiceUnavailable, api.Failure{Error: errNotCharging.Error()})
		return
	}
	if request != nil {
		if err := httpapi.ReadObject(http.MaxBytesReader(w, r.Body, chargeMax), request); err != nil {
			httpapi.Refuse(w, err)
			return
		}
	}
	status, result, err := do()
	var unknown *accounts.UnknownError
	switch {
	case errors.As(err, &unknown):
		httpapi.Answer(w, http.StatusNotFound, api.Failure{Error: unknown.Error(), Unknown: unknown.Containers})
	case errors.Is(err, accounts.ErrUnknown), errors.Is(err, os.ErrProcessDone):
		httpapi.Answer(w, http.StatusNotFound, api.Failure{Error: err.Error()})
	case errors.Is(err, accounts.ErrFull):
		httpapi.Answer(w, http.StatusInsufficientStorage, api.Failure{Error: err.Error()})
	case errors.Is(err, accounts.ErrRequest):
		httpapi.Refuse(w, fmt.Errorf("%w: %w", rules.ErrRequest, err))
	case err != nil:
		httpapi.Refuse(w, err)
	case result == nil:
		httpapi.AnswerStatus(w, status)
	default:
		httpapi.Answer(w, status, result)
	}
}

func (d *Daemon) handleCharge(w http.ResponseWriter, r *http.Request) {
	var request api.ChargeRequest
	d.charging(w, r, &request, func() (int, any, error) {
		all, err := request.All()
		if err != nil {
			return 0, nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
		}
		var charges []accounts.Charge
		for _, c := range all {
			charges = append(charges, accounts.Charge{Container: c.Container, Source: c.Source, Time: c.Duration()})
		}
		return http.StatusNoContent, nil, d.accounts.Charge(charges)
	})
}

func (d *Daemon) handleCharges(w http.ResponseWriter, r *http.Request) {
	d.charging(w, r, nil, func() (int, any, error) { return http.StatusOK, d.charges(), nil })
}

func (d *Daemon) handleHelper(w http.ResponseWriter, r *http.Request) {
	var request api.ChargeHelper
	d.charging(w, r, &request, func() (int, any, error) {
		if err := request.Check(); err != nil {
			return 0, nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
		}
		h := accounts.Helper{
			PID: request.Helper.PID, Group: request.Helper.Group, Container: request.To, Source: request.Source,
			Place: request.By == api.ByPlace, NoPlace: request.By == api.ByQuota, Shared: request.Shared,
		}
		attached, err := d.accounts.Attach(h)
		status := http.StatusCreated
		if attached.Known {
			status = http.StatusOK
		}
		return status, showHelper(attached), err
	})
}

func (d *Daemon) handleDetach(w http.ResponseWriter, r *http.Request) {
	d.charging(w, r, nil, func() (int, any, error) {
		return http.StatusNoContent, nil, d.accounts.Detach(r.PathValue("helper"))
	})
}

func (d *Daemon) handleLetGo(w http.ResponseWriter, r *http.Request) {
	var request api.ChargeLetGo
	d.charging(w, r, &request, func() (int, any, error) {
		pause, err := time.ParseDuration(request.For)
		if err != nil || pause <= 0 || pause > api.LetGoMax {
			return 0, nil, fmt.Errorf("%w: for %q: write a time of at most %v, as in 2s", rules.ErrRequest, request.For, api.LetGoMax)
		}
		return http.StatusNoContent, nil, d.accounts.LetGo(r.PathValue("account"), pause)
	})
}
