"""Measured rates of a machine, and reference curves of recipes: doctor, planning and reports read them."""
