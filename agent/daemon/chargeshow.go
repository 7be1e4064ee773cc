package daemon

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
)

// charges returns all charges in the form of package api.
func (d *Daemon) charges() api.Charges {
	shown, attached, shared := d.accounts.Show()
	all := api.Charges{
		Time:       time.Now().UTC().Format(time.RFC3339Nano),
		Containers: []api.Charged{}, Helpers: []api.ChargeAttached{}, Shared: []api.ChargeShared{},
	}
	for _, s := range shown {
		all.Containers = append(all.Containers, showAccount(s))
	}
	for _, h := range attached {
		all.Helpers = append(all.Helpers, showHelper(h))
	}
	for _, p := range shared {
		all.Shared = append(all.Shared, api.ChargeShared{
			PID: p.PID, Comm: p.Name, US: p.CPU.Microseconds(), UnownedUS: p.Unowned.Microseconds(),
		})
	}
	return all
}

func showHelper(h accounts.Attached) api.ChargeAttached {
	return api.ChargeAttached{
		ID: strconv.Itoa(h.ID), Container: h.Container, Source: h.Source,
		Helper: api.HelperProcess{PID: h.PID, Group: h.Group}, By: h.By, Reason: h.Reason,
	}
}

func showAccount(s accounts.Shown) api.Charged {
	c := api.Charged{
		Container: s.Name, ID: s.ID, Group: s.Group, Version: s.Version, Mode: s.Mode,
		Since: s.Since.UTC().Format(time.RFC3339Nano), Before: showLimit(s.Before), After: showLimit(s.After),
		OwnUS: s.Own.Microseconds(), Borrowed: []api.Borrowed{},
		DebtUS: s.Debt.Microseconds(), CarriedUS: s.Carried.Microseconds(), ForgivenUS: s.Forgiven.Microseconds(),
		Held: api.ChargeHeld{
			Now: s.HeldNow > 0, TotalUS: (s.Held + s.HeldNow).Microseconds(), LongestUS: max(s.LongestHold, s.HeldNow).Microseconds(),
			Count: uint64(s.Holds), TooLong: uint64(s.HeldTooLong),
		},
		Throttled: api.ChargeThrottled{
			Periods: s.Throttling.Periods, Throttled: s.Throttling.Throttled, US: s.Throttling.Time.Microseconds(),
		},
	}
	for source, t := range s.Borrowed {
		by := s.By[source]
		if by == "" {
			by = api.ByQuota
		}
		c.Borrowed = append(c.Borrowed, api.Borrowed{Source: source, US: t.Microseconds(), By: by})
	}
	slices.SortFunc(c.Borrowed, func(a, b api.Borrowed) int { return strings.Compare(a.Source, b.Source) })
	if p := s.Pressure; p != nil {
		c.Pressure = &api.ChargePressure{
			Some10: p.Avg10, Some60: p.Avg60, Some300: p.Avg300, TotalUS: p.Total.Microseconds(),
		}
	}
	return c
}

func showLimit(l bandwidth.Limit) api.ChargeLimit {
	quota := l.Quota.Microseconds()
	if l.Quota < 0 {
		quota = -1
	}
	return api.ChargeLimit{QuotaUS: quota, PeriodUS: l.Period.Microseconds(), BurstUS: l.Burst.Microseconds()}
}
