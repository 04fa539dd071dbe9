-- Nothing but the check: a claim, or a look at the mark.
return {'ok', highest, shadow}
