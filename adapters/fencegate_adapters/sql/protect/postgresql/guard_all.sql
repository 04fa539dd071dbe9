-- One lock guards every row of the table.
CREATE OR REPLACE FUNCTION fencegate.<<function>>() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS <<quote>>
BEGIN
    PERFORM fencegate.check_lock(<<new>>, <<record>>);
    RETURN NULL;
END
<<quote>>
